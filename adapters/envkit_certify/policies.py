"""Policies that solve nothing: whatever they earn, the environment gives away."""

import itertools
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

from envkit.certification_hooks import CertificationHooks
from envkit.env import Env, PolicyContext
from envkit.tasks import Task
from envkit.tools import ToolSpec
from envkit.turns import Step

T = TypeVar("T")
CONSTANTS: Final = ("1", "yes")
_LONGEST_COPY: Final = 8000
"""Maximum characters of a reply that repeats an observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyContext(PolicyContext):
    """The inputs of a trivial policy: a scripted policy's, and more."""

    texts: Sequence[str]
    """The observations so far; the first is the prompt."""
    steps: Sequence[Step]
    rng: random.Random
    """Random generator that continues through the episode."""


Reply = Callable[[ReplyContext], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Statistics of an oracle's episodes on other tasks."""

    frequent: Sequence[str]
    """The most frequent reply by turn."""
    answers: Sequence[str]
    """The values of tasks that earned a reward, the most frequent first."""
    questions: Sequence[tuple[str, Sequence[str]]]
    """Each first observation's text, and the replies that solved it."""


def trivial_policies(
    env: Env, hooks: CertificationHooks, learned: Learned | None
) -> tuple[dict[str, Reply], dict[str, str]]:
    """Return the policies that apply to an environment, and the reason for each other one.

    Args:
        env: Already reset, so it has the tools that come with a task.
        hooks: The environment's certification hooks.
        learned: What the oracle did on other tasks; None without an oracle.
    """
    closed_book = hooks.closed_book
    found: dict[str, Reply | str] = {
        "empty reply": constant(""),
        **{f"constant {text!r}": constant(hooks.reply(text)) for text in CONSTANTS},
        **_from_oracle(env, hooks, learned),
        "copies the prompt": lambda context: context.texts[0][:_LONGEST_COPY],
        "answers with the prompt": "no hook 'answer'"
        if hooks.answer is None
        else lambda context: hooks.reply(context.texts[0][:_LONGEST_COPY]),
        "repeats the last observation": lambda context: context.texts[-1][:_LONGEST_COPY],
        "calls every tool at once": _calls_all if env.tools else "it has no tools",
        "calls one tool per turn": _calls_one if env.tools else "it has no tools",
        **_guesses(hooks),
        "closed book": "no hook 'closed_book'"
        if closed_book is None
        else lambda context: hooks.reply(closed_book(context.task)),
    }
    policies = {name: reply for name, reply in found.items() if not isinstance(reply, str)}
    return policies, {name: why for name, why in found.items() if isinstance(why, str)}


def constant(text: str) -> Callable[[PolicyContext], str]:
    """Return a policy that always gives the same reply."""
    return lambda _: text


def _from_oracle(
    env: Env, hooks: CertificationHooks, learned: Learned | None
) -> dict[str, Reply | str]:
    """Return the policies that repeat what the oracle said in other tasks."""
    if learned is None:
        names = (
            "most frequent reply",
            "reply of the most similar question",
            "frequent answers with the scorer",
        )
        return dict.fromkeys(names, "it has no oracle to learn it from")
    ask = hooks.ask or _scorer(env)
    heard = hooks.confirms_guess or _sounds_right
    with_scorer: Reply | str = "no hook 'ask', and no tool takes one string"
    if ask is not None and not learned.answers:
        with_scorer = "no task value appears in an oracle reply"
    elif ask is not None:
        with_scorer = _with_scorer(hooks, ask, heard, lambda _: learned.answers)
    return {
        "most frequent reply": _by_turn(learned.frequent),
        "reply of the most similar question": _reply_to_similar(learned.questions),
        "frequent answers with the scorer": with_scorer,
    }


def _by_turn(replies: Sequence[str]) -> Reply:
    return lambda context: replies[min(context.turn, len(replies) - 1)]


def _reply_to_similar(questions: Sequence[tuple[str, Sequence[str]]]) -> Reply:
    find = most_similar(questions)

    def reply(context: ReplyContext) -> str:
        replies = find(context.texts[0]) or [""]
        return replies[min(context.turn, len(replies) - 1)]

    return reply


def most_similar(known: Sequence[tuple[str, T]]) -> Callable[[str], T | None]:
    """Return a function that looks up the value of the most similar text.

    Similarity is the Jaccard index over character 4-grams.

    Args:
        known: Texts with their values; ties go to the first.

    Returns:
        A function of a text; it returns None if no text is known.
    """
    learned = [(_grams(text), value) for text, value in known]

    def find(text: str) -> T | None:
        asked = _grams(text)
        entry = max(learned, key=lambda entry: _overlap(asked, entry[0]), default=None)
        return None if entry is None else entry[1]

    return find


def _grams(text: str) -> set[str]:
    cut = text[:_LONGEST_COPY]
    return {cut[n : n + 4] for n in range(max(1, len(cut) - 3))}


def _overlap(left: set[str], right: set[str]) -> float:
    return len(left & right) / max(1, len(left | right))


def _with_scorer(
    hooks: CertificationHooks,
    ask: Callable[[str], str],
    heard: Callable[[Step], bool],
    options_of: Callable[[Task], Sequence[str]],
) -> Reply:
    """Return a policy that scores options one by one, then submits the right one or the last."""

    def reply(context: ReplyContext) -> str:
        options = options_of(context.task) or [""]
        last = len(options) - 1
        right = next((n for n, step in enumerate(context.steps) if heard(step)), None)
        if right is not None:
            return hooks.reply(options[min(right, last)])
        option = options[min(context.turn, last)]
        is_last = context.turn + 1 >= min(context.env.max_turns, len(options))
        return hooks.reply(option) if is_last else ask(option)

    return reply


def _scorer(env: Env) -> Callable[[str], str] | None:
    """Return how to call the first tool that takes one string and nothing else."""
    for spec in env.tools:
        required: Sequence[str] = spec.parameters.get("required", ())
        properties: Mapping[str, Any] = spec.parameters.get("properties", {})
        if len(required) == 1 and properties.get(required[0], {}).get("type") == "string":
            name, argument = spec.name, required[0]
            return lambda answer: write_call(name, {argument: answer})
    return None


def _sounds_right(step: Step) -> bool:
    text = step.observation["text"].lower()
    is_denied = re.search(r"\b(?:not|no|wrong|incorrect)\b|\b0(?:\.0)?\b", text)
    says_so = re.search(r"\b(?:right|correct|yes|1\.0)\b", text)
    return step.reward > 0 or (says_so is not None and is_denied is None)


def _guesses(hooks: CertificationHooks) -> dict[str, Reply | str]:
    choices, ask, heard = hooks.choices, hooks.ask, hooks.confirms_guess
    if choices is None:
        names = ("random choice", "every choice at once", "guesses with the scorer")
        return dict.fromkeys(names, "no hook 'choices'")
    return {
        "random choice": lambda context: hooks.reply(
            context.rng.choice(list(choices(context.task)) or [""])
        ),
        "every choice at once": lambda context: "\n".join(
            hooks.reply(choice) for choice in choices(context.task)
        ),
        "guesses with the scorer": "no hook 'ask'"
        if ask is None or heard is None
        else _with_scorer(hooks, ask, heard, lambda task: list(choices(task))),
    }


def _calls_all(context: ReplyContext) -> str:
    return "\n".join(fill_call(spec) for spec in context.env.tools)


def _calls_one(context: ReplyContext) -> str:
    tools = context.env.tools
    return fill_call(tools[context.turn % len(tools)])


def fill_call(spec: ToolSpec) -> str:
    """Return a call of a tool with some arguments that match its schema."""
    return write_call(spec.name, fill(spec.parameters))


def write_call(name: str, arguments: object) -> str:
    """Return a tool call as a reply."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def fill(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON data
    """Return some value that matches a JSON Schema."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return fill(schema[key][0])
    kind: object = schema.get("type", "object")
    if isinstance(kind, list):
        kind = cast("list[object]", kind)[0]
    if kind == "object":
        properties: Mapping[str, Any] = schema.get("properties", {})
        return {name: fill(properties.get(name, {})) for name in schema.get("required", ())}
    if kind == "array":
        count = int(schema.get("minItems", 1))
        listed: Sequence[Mapping[str, Any]] = schema.get("prefixItems", ())
        items = itertools.chain(listed, itertools.repeat(schema.get("items", {"type": "string"})))
        return [fill(item) for item in itertools.islice(items, count)]
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": True, "null": None}.get(str(kind), "1")


def leaves(data: object) -> list[str]:
    """Return the strings and numbers of JSON data, as text."""
    if isinstance(data, Mapping):
        return [
            leaf for value in cast("Mapping[str, object]", data).values() for leaf in leaves(value)
        ]
    if isinstance(data, list | tuple):
        return [leaf for value in cast("Sequence[object]", data) for leaf in leaves(value)]
    if isinstance(data, bool) or not isinstance(data, str | int | float):
        return []
    return [str(data)]


def gold_of(task: Mapping[str, Any], reply: str) -> str | None:
    """Return the longest task value that appears in the oracle's reply as a word."""
    found = [leaf for leaf in leaves(task) if leaf and holds(reply, leaf)]
    return max(found, key=len, default=None)


def holds(text: str, answer: str) -> bool:
    """Return whether an answer appears in a text as a whole word."""
    return answer.lower() in text.lower() and pattern_of(answer).search(text) is not None


@lru_cache(maxsize=1024)
def pattern_of(answer: str) -> re.Pattern[str]:
    """Return the pattern of an answer as a whole word."""
    pattern = rf"(?<![\w.])(?<!\w-){re.escape(answer)}(?!\w|\.\d|-\w)"
    return re.compile(pattern, re.IGNORECASE)
