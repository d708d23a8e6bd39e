"""Certification lines: contract, determinism, oracle, replies, tools."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from envkit.checker import PROMISES
from envkit.checker.conduct import BAD_REPLIES, episode_problems
from envkit.checker.promises import is_solved, meaning_of_solved
from envkit.checker.under_test import CheckedEpisode, difference
from envkit.env import Policy, PolicyContext
from envkit.errors import EnvFault, describe
from envkit_certify.certified import CertifiedEnv
from envkit_certify.lines import CertificateLine, judged, skipped
from envkit_certify.policies import constant, fill_call, write_call
from envkit_certify.process import Script

_REPLAYED_SEEDS: Final = 4
_HIDDEN: Final = ("tasks", "tools", "spec", "action_space", "observation_space", "metadata")
_DEPTH: Final = 3
_ENORMOUS: Final = 200_000
_DIGITS: Final = tuple("0123456789")


class _GaveUpError(Exception):
    """The oracle did not continue after a changed reply."""


def contract(subject: CertifiedEnv) -> CertificateLine:
    """Check every rule of `envkit.check_env`, with its own seeds."""
    found = subject.examined
    problems = [*found.problems, *_other_tasks(subject)]
    passed = len(found.passed)
    detail = f"rules hold; {len(problems)} problems, {found.turns} turns played"
    reasons = [f"{rule}: {what}" for rule, what in found.notes]
    reasons += [f"skipped {rule}: {why}" for rule, why in found.skipped]
    return judged("contract", passed, detail, problems=problems, evidence=reasons)


def _other_tasks(subject: CertifiedEnv) -> Iterator[str]:
    """Yield a problem if `options["task"]` does not choose the task."""
    if not subject.env.capabilities.replay_safe:
        return
    first, second = list(subject.seeds)[:2]
    subject.env.reset(seed=first)
    task = copy.deepcopy(subject.env.task)
    subject.env.reset(seed=second, options={"task": copy.deepcopy(task)} if task else None)
    if task and subject.env.task != task:
        yield "reset(options={'task': ...}) does not play the given task"


def determinism(subject: CertifiedEnv) -> CertificateLine:
    """Play the same seeds and replies twice, here and in a fresh process."""
    name = "determinism"
    if not subject.env.capabilities.deterministic:
        return skipped(name, "capabilities.deterministic is not declared")
    problems = subject.broken(PROMISES)
    problems += _redrawn(subject)
    script, rows = _script(subject)
    fresh = subject.replays.rows(subject.plan.target, subject.plan.kwargs, script)
    for episode, before, after in zip(script, rows, fresh, strict=True):
        if (where := difference(before, after)) is not None:
            problems.append(
                f"a fresh process with another hash seed plays seed {episode['seed']} differently "
                f"at {where}"
            )
    detail = "episodes replayed in a fresh process, byte by byte"
    return judged(name, len(script), detail, problems=problems)


def _script(subject: CertifiedEnv) -> tuple[Script, list[list[str]]]:
    """Play several kinds of probes and return their replies and observations."""
    script: Script = []
    rows: list[list[str]] = []
    probes: list[Policy] = [
        lambda context: BAD_REPLIES[(context.seed + context.turn) % len(BAD_REPLIES)],
        lambda context: subject.hooks.reply(_DIGITS[(context.seed + context.turn) % 10]),
    ]
    if subject.oracle is not None:
        probes.append(subject.oracle)
    for seed in list(subject.seeds)[:_REPLAYED_SEEDS]:
        for probe in probes:
            episode = subject.play(probe, seed=seed)
            script.append({"seed": seed, "replies": list(episode.replies)})
            rows.append(episode.rows())
    return script, rows


def _redrawn(subject: CertifiedEnv) -> Iterator[str]:
    """Yield hidden values that decide the reward and change when the same seed is reset."""
    for seed in subject.few_seeds[:3]:
        subject.env.reset(seed=seed)
        before = _state(subject.env)
        subject.env.reset(seed=seed)
        after = _state(subject.env)
        for path in before:
            if path not in after or before[path] == after[path]:
                continue
            if problem := _decides(subject, seed, path):
                yield problem


def _decides(subject: CertifiedEnv, seed: int, path: str) -> str | None:
    env = subject.env
    env.reset(seed=seed)
    secret = _state(env).get(path, "")
    with_it = env.step(subject.hooks.reply(secret))[1]
    env.reset(seed=seed)
    if _state(env).get(path) == secret:
        return None
    without = env.step(subject.hooks.reply(secret))[1]
    if with_it == without:
        return None
    return (
        f"{path} is redrawn at each reset with seed {seed}: the reply {secret[:40]!r} earns "
        f"{with_it:g}, then {without:g}"
    )


def _state(env: object) -> dict[str, str]:
    """Return the strings and numbers that an instance holds, by path."""
    found: dict[str, str] = {}

    def look(path: str, value: object, depth: int) -> None:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            found[path] = str(value)
        elif depth and isinstance(value, Mapping):
            for key, inner in cast("Mapping[object, object]", value).items():
                look(f"{path}.{key}", inner, depth - 1)
        elif depth and isinstance(value, list | tuple):
            for number, inner in enumerate(cast("list[object]", value)[:50]):
                look(f"{path}[{number}]", inner, depth - 1)

    for key, value in vars(env).items():
        if key not in _HIDDEN:
            look(key, value, _DEPTH)
    return found


def oracle(subject: CertifiedEnv) -> CertificateLine:
    """Check that the oracle solves every task within the contract."""
    name = "oracle"
    if subject.oracle is None:
        return skipped(name, "it has no oracle")
    played = subject.solved
    problems = [
        f"seed {seed}: return {episode.total:g}, "
        f"{'terminated' if episode.steps[-1].terminated else 'truncated'} "
        f"after {len(episode.steps)} turns"
        for seed, episode in played
        if not is_solved(episode, subject.env) or not episode.steps[-1].terminated
    ]
    problems += [
        f"seed {seed}, turn {n}: the oracle's own reply has the parse_error {error!r}"
        for seed, episode in played
        for n, step in enumerate(episode.steps, 1)
        if (error := step.info.get("parse_error")) is not None and step.reward > 0
    ]
    contract = [
        f"seed {seed}: {problem}"
        for seed, episode in played
        for problem in episode_problems(episode, subject.env)
    ]
    share = 1 - len({p.partition(",")[0] for p in problems}) / len(played)
    meaning = meaning_of_solved(played[0][1], subject.env)
    return judged(
        name,
        share,
        f"share of {len(played)} tasks solved, that is, with {meaning}",
        problems=[*problems, *contract][:10],
    )


def replies(subject: CertifiedEnv) -> CertificateLine:
    """Check that useless replies neither raise nor earn much."""
    problems: list[str] = []
    blind: dict[str, list[float]] = {}
    same = [episode.total for seed, episode in subject.solved if seed in subject.few_seeds]
    best = sum(same) / max(1, len(same))
    kinds = _blind_kinds(subject)
    solving = _solving_kinds(subject)
    for kind, reply in {**kinds, **solving}.items():
        returns = _returns(subject, kind, reply, problems)
        mean = sum(returns) / max(1, len(returns))
        if subject.solved and len(returns) == len(subject.few_seeds) and mean > best + 1e-6:
            problems.append(f"{kind} earns {mean:.3g}, more than the oracle's {best:.3g}")
        if kind in kinds:
            blind.setdefault(kind.partition(" ")[0], []).extend(returns)
            blind.setdefault(kind, []).extend(returns)
    detail = f"best mean return of {len(kinds) + len(solving)} kinds of useless replies"
    return subject.judged("replies", blind, detail, problems)


def _returns(subject: CertifiedEnv, kind: str, reply: Policy, problems: list[str]) -> list[float]:
    """Return what one kind of reply earns on a few tasks, and record problems."""
    returns: list[float] = []
    for seed in subject.few_seeds:
        try:
            episode = subject.play(reply, seed=seed)
        except (EnvFault, _GaveUpError):
            continue
        except Exception as error:  # noqa: BLE001  # whatever an environment raises is the finding
            problems.append(f"{kind} makes it raise at seed {seed}: {describe(error)[:200]}")
            continue
        problems += _paid_errors(kind, seed, episode)
        returns.append(episode.total)
    return returns


def _paid_errors(kind: str, seed: int, episode: CheckedEpisode) -> Iterator[str]:
    """Yield rewards paid for replies that the environment itself calls malformed.

    A truncation may pay for an earlier, well-formed reply.
    """
    was_read = False
    for number, step in enumerate(episode.steps, 1):
        error = step.info.get("parse_error")
        was_read |= error is None
        if error is not None and step.reward > 0 and not (step.truncated and was_read):
            yield (
                f"{kind}, seed {seed}, turn {number}: reward {step.reward:g} together with "
                f"parse_error {str(error)[:80]!r}"
            )


def _blind_kinds(subject: CertifiedEnv) -> dict[str, Policy]:
    """Return replies that cannot solve a task, by kind."""
    hooks = subject.hooks
    numbers = " ".join(str(n) for n in range(181))
    special = ("None", "nan", "inf", "null", "True", "[]", "*", ".*")
    return {
        **{f"malformed {n}: {text[:24]!r}": constant(text) for n, text in enumerate(BAD_REPLIES)},
        **{f"digit {digit}": constant(hooks.reply(digit)) for digit in _DIGITS},
        "enormous reply": constant("a " * (_ENORMOUS // 2)),
        "enormous answer": constant(hooks.reply("9" * _ENORMOUS)),
        "prompt echoed": _said,
        "prompt echoed as an answer": lambda context: hooks.reply(_said(context)),
        "list of numbers": constant(numbers),
        "list of numbers as an answer": constant(hooks.reply(numbers)),
        "special values": lambda context: hooks.reply(special[context.turn % len(special)]),
    }


def _solving_kinds(subject: CertifiedEnv) -> dict[str, Policy]:
    """Return replies that may solve a task, but no better than the oracle does, by kind."""
    hooks = subject.hooks
    kinds: dict[str, Policy] = {}
    if (choices := hooks.choices) is not None:
        kinds["all of the environment's own choices"] = lambda context: "\n".join(
            hooks.reply(choice) for choice in choices(context.task)
        )
    if subject.oracle is not None:
        solve = _or_give_up(subject.oracle)
        kinds |= {
            "oracle's reply cut short": lambda c: solve(c)[:-1],
            "oracle's reply without its start": lambda c: solve(c)[1:],
            "oracle's reply unclosed": lambda c: "<tool_call>{" + solve(c),
            "oracle's reply before a broken call": lambda c: solve(c) + "\n<tool_call>{",
            "oracle's reply as an unknown tool": lambda c: solve(c).replace(
                '"name": "', '"name": "no_such_'
            ),
            "oracle's first reply repeated": _repeated(solve),
            "oracle's rewarded reply repeated": _stuck(solve, subject),
            "oracle's replies, each twice": lambda c: solve(replace(c, turn=c.turn // 2)),
        }
    return kinds


def _said(context: PolicyContext) -> str:
    parts = context.messages[0 if len(context.messages) < 2 else 1]["content"]
    if isinstance(parts, str):
        return parts[:8000]
    texts = [str(part.get("text", "")) for part in cast("list[dict[str, Any]]", parts)]
    return " ".join(texts)[:8000]


def _or_give_up(oracle: Policy) -> Policy:
    """Return an oracle whose exceptions are not mistaken for the environment's.

    An oracle may look at the environment and raise if its replies were not carried out.
    """

    def reply(context: PolicyContext) -> str:
        try:
            return oracle(context)
        except Exception as error:
            raise _GaveUpError from error

    return reply


def _repeated(solve: Policy) -> Policy:
    first: dict[int, str] = {}

    def reply(context: PolicyContext) -> str:
        if context.turn == 0:
            first[context.seed] = solve(context)
        return first[context.seed]

    return reply


def _stuck(solve: Policy, subject: CertifiedEnv) -> Policy:
    """Repeat the oracle's first rewarded reply until the end."""
    replies = {
        seed: (turn, episode.replies[turn])
        for seed, episode in subject.solved[::-1]
        for turn in [n for n, step in enumerate(episode.steps) if step.reward > 0][:1]
    }

    def reply(context: PolicyContext) -> str:
        turn, text = replies.get(context.seed, (64, ""))
        return text if context.turn >= turn else solve(context)

    return reply


def tools(subject: CertifiedEnv) -> CertificateLine:
    """Check that calling tools in any order neither raises nor earns much."""
    specs = subject.env.tools
    if not specs:
        return skipped("tools", "it has no tools")
    calls = [fill_call(spec) for spec in specs]
    orders: dict[str, list[str]] = {
        "in order": calls,
        "in reverse order": calls[::-1],
        "all at once": ["\n".join(calls)],
        **{f"{spec.name} repeated": [call] for spec, call in zip(specs, calls, strict=True)},
        **{
            f"{spec.name} with {what}": [write_call(spec.name, arguments)]
            for spec in specs
            for what, arguments in _ARGUMENTS.items()
        },
    }
    problems: list[str] = []
    returns = {
        kind: _returns(subject, kind, lambda c, said=said: said[c.turn % len(said)], problems)
        for kind, said in orders.items()
    }
    detail = f"best mean return of {len(orders)} useless call orders"
    return subject.judged("tools", returns, detail, problems)


_ARGUMENTS: Final[Mapping[str, Any]] = {
    "no arguments": {},
    "null": None,
    "a list": [1],
    "unknown arguments": {"no_such_argument": 1},
}
