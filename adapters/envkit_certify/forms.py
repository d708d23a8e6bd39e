"""The form of the oracle's rewarded replies: what stands around the answer."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from envkit.certification_hooks import CertificationHooks
from envkit.checker.under_test import CheckedEpisode
from envkit.tools import ToolSpec
from envkit_certify.policies import fill, leaves, pattern_of, write_call

_ANSWER_KEY: Final = re.compile("answer|gold|target|solution|label|code|expected|truth", re.I)
_KNOWN: Final[Mapping[str, tuple[str, str]]] = {
    "\\boxed": ("\\boxed{", "}"),
    "<answer>": ("<answer>", "</answer>"),
    "####": ("#### ", ""),
    "Action:": ("Action: ", ""),
    "Answer:": ("Answer: ", ""),
    '"answer"': ('{"answer": "', '"}'),
}
"""Forms for an environment without an oracle, by what its prompt then mentions."""
_MOST: Final = 3


@dataclass(frozen=True, slots=True)
class Form:
    """What stands before and after an answer."""

    before: str
    after: str

    @property
    def is_string(self) -> bool:
        """Whether the answer is a string in JSON."""
        return self.before.endswith('"') and self.after.startswith('"') and "{" in self.before

    @property
    def is_value(self) -> bool:
        """Whether the answer is a value in JSON without quotation marks."""
        return re.search(r'[{,]\s*"[^"]*":\s*$', self.before) is not None

    def reply(self, answer: str) -> str:
        """Return the reply with another answer, escaped where JSON needs it."""
        if self.is_string:
            answer = json.dumps(answer, ensure_ascii=False)[1:-1]
        elif self.is_value and not _is_json(answer):
            answer = json.dumps(answer, ensure_ascii=False)
        return self.before + answer + self.after

    def unquoted(self) -> "Form":
        """Return the form whose answer may be any JSON value."""
        return Form(self.before[:-1], self.after[1:]) if self.is_string else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """An answer of the oracle that earned a reward."""

    seed: int
    turn: int
    episode: CheckedEpisode
    gold: str
    form: Form
    is_last: bool
    is_named: bool
    """Whether the task has it under a name such as "answer"."""
    is_stated: bool
    """Whether it is a value of the task; otherwise it is what differs between replies."""

    @property
    def lead(self) -> Sequence[str]:
        """The replies before it."""
        return self.episode.replies[: self.turn]

    @property
    def reward(self) -> float:
        """What it earned."""
        return self.episode.steps[self.turn].reward


def paid_answers(solved: Sequence[tuple[int, CheckedEpisode]]) -> list[Paid]:
    """Return the rewarded answers of the oracle's episodes."""
    turns = [
        (seed, episode, turn, len([s for s in episode.steps if s.reward > 0]) == 1)
        for seed, episode in solved
        for turn, step in enumerate(episode.steps)
        if step.reward > 0
    ]
    common = _common([episode.replies[turn] for _, episode, turn, _ in turns])
    found: list[Paid] = []
    for seed, episode, turn, is_last in turns:
        reply = episode.replies[turn]
        stated = _stated(episode.task, reply)
        slot = "" if common is None else _between(reply, common)
        if stated and not stated[1] and stated[0] in slot != stated[0] and _is_answer(slot):
            stated = None  # a part of the answer that happens to be a value of the task
        if stated is None and (common is None or not _is_answer(_between(reply, common))):
            continue
        gold, is_named = stated or (_between(reply, cast("Form", common)), False)
        end = _last(reply, gold) if stated else len(reply) - len(cast("Form", common).after)
        form = Form(reply[: end - len(gold)], reply[end:])
        found.append(
            Paid(
                seed=seed,
                turn=turn,
                episode=episode,
                gold=gold,
                form=form,
                is_last=is_last,
                is_named=is_named,
                is_stated=stated is not None,
            )
        )
    return found


def _stated(task: Mapping[str, object], reply: str) -> tuple[str, bool] | None:
    """Return the longest value of a task that a reply holds, and whether it is named an answer."""
    found = [
        (leaf, _ANSWER_KEY.search(key) is not None)
        for key, value in task.items()
        for leaf in leaves(value)
        if leaf and leaf.lower() in reply.lower() and _last(reply, leaf) >= 0
    ]
    return max(found, key=lambda entry: (len(entry[0]), entry[1]), default=None)


def _last(reply: str, answer: str) -> int:
    """Return the end of the last place where an answer stands as a word; -1 without one."""
    return max((match.end() for match in pattern_of(answer).finditer(reply)), default=-1)


def _common(replies: Sequence[str]) -> Form | None:
    """Return what all replies begin and end with, up to the borders of words."""
    if len(set(replies)) < 2:
        return None
    before = _shared(replies)
    rest = [reply[len(before) :] for reply in replies]
    after = _shared(text[::-1] for text in rest)[::-1]
    while before and (before[-1].isalnum() or before[-1] in "-._\\"):
        before = before[:-1]
    while after and (after[0].isalnum() or after[0] in "-._"):
        after = after[1:]
    return Form(before, after)


def _shared(texts: Iterable[str]) -> str:
    """Return what all texts begin with."""
    first, last = min(texts := list(texts)), max(texts)
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((at for at, (a, b) in pairs if a != b), min(len(first), len(last)))]


def _is_answer(text: str) -> bool:
    return bool(text.strip()) and re.search(r'["{}<>\n]', text) is None


def _between(reply: str, form: Form) -> str:
    return reply[len(form.before) : len(reply) - len(form.after)]


def blind_forms(
    paid: Sequence[Paid], hooks: CertificationHooks, tools: Sequence[ToolSpec], prompt: str
) -> list[Form]:
    """Return the forms in which a policy that knows no answer may give one.

    Args:
        paid: The oracle's answers; the forms are those of the last ones.
        hooks: The hook `answer` is a form, too.
        tools: A tool that takes a string or number is a form where there is no oracle.
        prompt: What the model reads first, for the same purpose.
    """
    found: list[Form] = []
    if hooks.answer is not None:
        before, slot, after = hooks.answer("\x00").partition("\x00")
        found += [Form(before, after)] if slot else []
    counts = Counter(entry.form for entry in paid[::-1])
    found += [form for form, _ in counts.most_common(2)]
    if counts and counts.most_common(1)[0][1] * 2 < len(paid):  # thoughts differ: keep the end
        ends = _shared(form.before[::-1] for form in counts)
        found.append(Form(ends[::-1], _shared(form.after for form in counts)))
    if not paid:
        found += [Form(*form) for name, form in _KNOWN.items() if name in prompt]
        found += [form for spec in tools for form in _arguments(spec)]
    found = list(dict.fromkeys(found))[:_MOST] or [Form("", "")]
    return list(dict.fromkeys([*found, *(form.unquoted() for form in found[:2])]))


def _arguments(spec: ToolSpec) -> Iterator[Form]:
    """Yield the forms that put an answer in one argument of a call."""
    arguments = fill(spec.parameters)
    for name in cast("dict[str, object]", arguments) if isinstance(arguments, dict) else ():
        before, slot, after = write_call(spec.name, {**arguments, name: "\x00"}).partition(
            "\\u0000"
        )
        yield from [Form(before, after)] if slot else []


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=lambda name: json.loads(f"no {name}"))
    except (ValueError, RecursionError):
        return False
    return True
