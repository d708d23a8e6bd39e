"""Certification line: blind and wrong answers in the format of the oracle's replies."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from envkit.checker.under_test import LONGEST_EPISODE
from envkit.env import PolicyContext
from envkit.errors import ContractError, EnvFault, describe
from envkit.messages import text_of
from envkit.reply import Reply
from envkit.success import verdict_in
from envkit.turns import Step
from envkit_certify.certified import CertifiedEnv, earns
from envkit_certify.forms import Paid, blind_forms
from envkit_certify.lines import CertificateLine, judged
from envkit_certify.payloads import Blind, blind_answers, wrong_answers

_TASKS: Final = 3
_CONFIRMING: Final = 24
"""Maximum episodes that confirm that an answer pays."""
_SUSPECTS: Final = 8
_LIMIT_S: Final = 60.0
"""Seconds after which nothing more is sent, because some graders are slow."""
_SHARE: Final = 0.4

Said = Callable[[str], "str | Reply"]
"""Returns a reply, given the prompt's text."""


@dataclass(slots=True)
class _Tally:
    """What replies earned, by name."""

    until: float
    """When to stop, by the monotonic clock in seconds."""
    earned: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    raised: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, name: str, value: float) -> None:
        self.earned.setdefault(name, []).append(value)


def payloads(subject: CertifiedEnv) -> CertificateLine:
    """Check that blind answers earn little, and that wrong answers earn less than right ones."""
    problems: list[str] = []
    worst, count = 0.0, 0
    until = time.monotonic() + _LIMIT_S
    for title, said, leads in _tries(subject):
        tally = _Tally(until=until)
        for seed, lead in leads:
            _send_all(subject, seed, lead, said, tally)
        count += len(said)
        problems += [f"{title}{name} makes it raise: {what}" for name, what in tally.raised.items()]
        for name in _suspects(tally, subject.limit) if not _late(until) else ():
            values = [
                _whole(subject, seed, lead, said[name]) for seed, lead in _more(subject, leads)
            ]
            mean = math.fsum(values) / max(1, len(values))
            worst = max(worst, mean)
            if earns(values, subject.limit, subject.best_return):
                problems.append(
                    f"{title}{name} earns {mean:.3g}, above the limit {subject.limit:.3g}"
                )
    found, tried = _wrong(subject, until)
    detail = f"best mean return of {count + tried} blind or wrong answers"
    if _late(until):
        detail += f"; the line stopped after {_LIMIT_S:g} s"
    return judged("payloads", worst, detail, problems=[*problems, *found])


_Leads = Sequence[tuple[int, Sequence[str]]]
"""Seeds with the oracle's replies before the answer."""


def _tries(subject: CertifiedEnv) -> Iterator[tuple[str, dict[str, Said], _Leads]]:
    """Yield sets of replies: in each form from the first turn on, and after the oracle's start."""
    golds = list(dict.fromkeys(entry.gold for entry in subject.paid))
    answers = blind_answers(golds[1:])
    silent = subject.play(lambda _: "", seed=subject.plan.seed)
    prompt = f"{subject.env.system_prompt or ''}\n{silent.messages}"
    forms = blind_forms(subject.paid, subject.hooks, subject.env.tools, prompt)
    seeds: _Leads = [(seed, ()) for seed in subject.few_seeds[: len(subject.few_seeds) // 2 + 1]][
        :_TASKS
    ]
    for number, form in enumerate(forms):
        title = f"in the form {form.reply('...')[-60:]!r}, " if form.before or form.after else ""
        few = answers if number == 0 else {k: v for k, v in answers.items() if _is_short(k)}
        said = {name: _filled(form.reply, answer) for name, answer in few.items()}
        yield title, said, seeds if number == 0 else seeds[:2]
    late = [
        entry
        for entry in subject.paid
        if entry.is_last and entry.turn and not any(entry.gold in r for r in entry.lead)
    ][:_TASKS]
    late = [entry for entry in late if _lead(subject, entry) and not _pays_other(subject, entry)]
    if late:
        said = {name: _filled(late[0].form.reply, answer) for name, answer in answers.items()}
        yield (
            "after the oracle's first steps, ",
            said,
            [(entry.seed, entry.lead) for entry in late],
        )


def _is_short(name: str) -> bool:
    return name.partition(":")[0] in ("nothing", "wildcard", "empty value", "everything", "word")


def _filled(reply: Callable[[str], str], answer: Blind) -> Said:
    return lambda prompt: reply(answer if isinstance(answer, str) else answer(prompt))


def _reply(context: PolicyContext, lead: Sequence[str], said: Said) -> str | Reply:
    if context.turn < len(lead):
        return lead[context.turn]
    first = next((m for m in context.messages if m["role"] != "system"), None)
    return said("" if first is None else text_of(first))


def _worth(subject: CertifiedEnv, step: Step) -> float:
    """Return a step's reward, or a solved episode's if the step claims success."""
    try:
        solved = verdict_in(step.info) is True
    except ContractError:
        solved = False
    return max(float(step.reward), subject.best_return * solved)


def _send_all(
    subject: CertifiedEnv, seed: int, lead: Sequence[str], said: Mapping[str, Said], tally: _Tally
) -> None:
    """Send every reply once in episodes of one task, as many an episode as it takes."""
    pending = deque(name for name in said if name not in tally.raised)
    pending.rotate(-seed % max(1, len(pending)))
    while pending and not _late(tally.until):
        earned: dict[str, float] = {}
        try:
            _episode(subject, seed, lead, said, pending, earned)
        except EnvFault:
            pass
        except Exception as error:  # noqa: BLE001  # whatever an environment raises is the finding
            if earned:
                tally.raised[list(earned)[-1]] = describe(error)[:200]
        if not earned:
            return  # the oracle's start cannot be replayed
        total = math.fsum(earned.values())
        for name, value in earned.items():
            tally.add(name, value)
            if total > subject.limit and len(earned) <= _SUSPECTS:
                tally.add(name, subject.limit)  # the reward may come later than what earns it


def _episode(
    subject: CertifiedEnv,
    seed: int,
    lead: Sequence[str],
    said: Mapping[str, Said],
    pending: deque[str],
    earned: dict[str, float],
) -> None:
    """Play an episode that takes replies from `pending`, and add what each earns."""
    sent: list[str] = []

    def reply(context: PolicyContext) -> str | Reply:
        if context.turn >= len(lead):
            sent.append(pending.popleft())
            earned[sent[-1]] = 0.0
        return _reply(context, lead, said[sent[-1]] if sent else str)

    player = subject.begin(reply, seed=seed, task=subject.known_task(seed))
    while not player.ended and len(player.steps) < LONGEST_EPISODE + len(lead):
        if len(player.steps) >= len(lead) and not pending:
            return
        step = player.turn()
        if sent:
            earned[sent[-1]] += _worth(subject, step)


def _suspects(tally: _Tally, limit: float) -> list[str]:
    means = {name: math.fsum(v) / len(v) for name, v in tally.earned.items()}
    found = [name for name, mean in means.items() if mean > limit / 3 and mean > 0]
    return sorted(found, key=lambda name: -means[name])[:_SUSPECTS]


def _more(subject: CertifiedEnv, leads: _Leads) -> _Leads:
    if any(lead for _, lead in leads):
        return leads
    return [(seed, ()) for seed in list(subject.seeds)[:_CONFIRMING]]


def _whole(subject: CertifiedEnv, seed: int, lead: Sequence[str], said: Said) -> float:
    """Return what one reply earns in every turn, or in the turn after the oracle's start."""
    try:
        episode = subject.play(lambda context: _reply(context, lead, said), seed=seed)
    except Exception:  # noqa: BLE001  # reported where it was found
        return 0.0
    steps = episode.steps[len(lead) : len(lead) + 1] if lead else episode.steps
    return math.fsum(_worth(subject, step) for step in steps)


def _lead(subject: CertifiedEnv, entry: Paid) -> Sequence[str]:
    """Return the oracle's replies that the answer needs before it; none if it pays at once."""
    if entry.turn == 0 or not entry.is_last:
        return entry.lead
    value = _earned(subject, entry, entry.form.reply(entry.gold), ())[0]
    return () if value >= entry.reward - 1e-6 else entry.lead


def _pays_other(subject: CertifiedEnv, entry: Paid) -> bool:
    """Return whether another task's answer earns as much, so that the answer does not matter."""
    other = next((e.gold for e in subject.paid if e.gold.lower() != entry.gold.lower()), None)
    if other is None:
        return True
    return _earned(subject, entry, entry.form.reply(other), entry.lead)[0] > subject.limit


def _earned(
    subject: CertifiedEnv, entry: Paid, said: str | Reply, lead: Sequence[str]
) -> tuple[float, bool]:
    """Return what a reply earns after some others, and whether the episode then ends."""
    episode = subject.play(
        lambda context: _reply(context, lead, lambda _: said),
        seed=entry.seed,
        task=subject.known_task(entry.seed),
        max_turns=len(lead) + 1,
    )
    if len(episode.steps) <= len(lead):
        return 0.0, True
    return _worth(subject, episode.steps[-1]), episode.ended


def _late(until: float) -> bool:
    return time.monotonic() > until


def _wrong(subject: CertifiedEnv, until: float) -> tuple[list[str], int]:
    """Return problems with replies made of right answers, and how many replies there are."""
    golds = list(dict.fromkeys(entry.gold for entry in subject.paid))
    results: dict[str, list[bool]] = {}
    raised: dict[str, str] = {}
    strangers: list[bool] = []
    one_each = {entry.seed: entry for entry in subject.paid[::-1]}
    for entry in list(one_each.values())[::-1][: 2 * _TASKS]:
        others = [gold for gold in golds if gold.lower() != entry.gold.lower()][:12]
        if not others or min(map(len, results.values()), default=0) >= _TASKS or _late(until):
            continue
        lead = _lead(subject, entry)
        value, ended = _earned(subject, entry, entry.form.reply(others[0]), lead)
        takes_any = value >= entry.reward - 1e-6
        strangers += [takes_any] if entry.is_named else []
        if takes_any:
            continue
        said = wrong_answers(entry, others, grades_cut=subject.env.grades_cut_replies)
        for name, text in said.items():
            if name in raised or _late(until) or (name.startswith("three answers") and not ended):
                continue
            try:
                value = _earned(subject, entry, text, lead)[0]
            except EnvFault:
                continue
            except Exception as error:  # noqa: BLE001  # whatever it raises is the finding
                raised[name] = describe(error)[:200]
                continue
            results.setdefault(name, []).append(value >= entry.reward - 1e-6)
    problems = [f"{n} makes it raise: {e}" for n, e in raised.items()]
    problems += [
        f"{name} earns the full reward in {sum(paid)} of {len(paid)} tasks"
        for name, paid in results.items()
        if sum(paid) >= 2 and sum(paid) >= _SHARE * len(paid)
    ]
    if sum(strangers) >= 2 and sum(strangers) >= _SHARE * len(strangers):
        problems.append("another task's answer earns as much as the right one")
    return problems, len(results)
