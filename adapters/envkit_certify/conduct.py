"""Certification lines: contract, determinism, oracle, replies, tools."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from envkit.checker import PROMISES
from envkit.checker.conduct import BAD_REPLIES, episode_problems
from envkit.checker.promises import is_solved, meaning_of_solved
from envkit.checker.subject import Episode, Reply
from envkit.env import Policy, PolicyContext
from envkit.errors import EnvFault, describe
from envkit_certify.audit.policies import fill_call, write_call
from envkit_certify.bench import Bench, Script, lower_bound, total
from envkit_certify.lines import Line, judged, skipped

_REPLAYED_SEEDS: Final = 4
_HIDDEN: Final = ("tasks", "tools", "spec", "action_space", "observation_space", "metadata")
_DEPTH: Final = 3
_ENORMOUS: Final = 200_000
_DIGITS: Final = tuple("0123456789")


class _GaveUpError(Exception):
    """The oracle did not continue after a changed reply."""


def contract(bench: Bench) -> Line:
    """Check every rule of `envkit.check_env`, with its own seeds."""
    found = bench.examined
    problems = [*found.problems, *_other_tasks(bench)]
    passed = len(found.report.passed)
    detail = f"rules hold; {len(problems)} problems, {found.report.turns} turns played"
    reasons = [f"{rule}: {what}" for rule, what in found.report.notes]
    reasons += [f"skipped {rule}: {why}" for rule, why in found.report.skipped]
    return judged("contract", passed, detail, problems=problems, evidence=reasons)


def _other_tasks(bench: Bench) -> Iterator[str]:
    """Yield a problem if `options["task"]` does not choose the task."""
    if not bench.env.capabilities.replay_safe:
        return
    first, second = list(bench.seeds)[:2]
    bench.env.reset(seed=first)
    task = copy.deepcopy(bench.env.task)
    bench.env.reset(seed=second, options={"task": copy.deepcopy(task)} if task else None)
    if task and bench.env.task != task:
        yield "reset(options={'task': ...}) does not play the given task"


def determinism(bench: Bench) -> Line:
    """Play the same seeds and replies twice, here and in a fresh process."""
    name = "determinism"
    if not bench.env.capabilities.deterministic:
        return skipped(name, "capabilities.deterministic is not declared")
    problems = bench.broken(PROMISES)
    problems += _redrawn(bench)
    script, rows = _script(bench)
    fresh = bench.replays.rows(bench.plan.target, bench.plan.kwargs, script)
    for episode, before, after in zip(script, rows, fresh, strict=True):
        turn = next(
            (n for n, pair in enumerate(zip(before, after, strict=False)) if len(set(pair)) > 1),
            None,
        )
        if turn is None and len(before) == len(after):
            continue
        where = "start" if not turn else f"turn {turn}"
        problems.append(
            f"a fresh process with another hash seed plays seed {episode['seed']} differently, "
            f"from the {where} on: {_excerpt(before, after, turn)}"
        )
    detail = "episodes replayed in a fresh process, byte by byte"
    return judged(name, len(script), detail, problems=problems)


def _excerpt(before: list[str], after: list[str], turn: int | None) -> str:
    if turn is None:
        return f"{len(before) - 1} turns became {len(after) - 1}"
    old, new = before[turn], after[turn]
    pairs = enumerate(zip(old, new, strict=False))
    at = max(0, next((n for n, (x, y) in pairs if x != y), 0) - 30)
    return f"{old[at : at + 90]!r} became {new[at : at + 90]!r}"


def _script(bench: Bench) -> tuple[Script, list[list[str]]]:
    """Play several kinds of probes and return their replies and observations."""
    script: Script = []
    rows: list[list[str]] = []
    probes: list[Reply] = [
        lambda context: BAD_REPLIES[(context.seed + context.turn) % len(BAD_REPLIES)],
        lambda context: bench.hooks.reply(_DIGITS[(context.seed + context.turn) % 10]),
    ]
    if bench.oracle is not None:
        probes.append(bench.oracle)
    for seed in list(bench.seeds)[:_REPLAYED_SEEDS]:
        for probe in probes:
            episode = bench.play(probe, seed)
            script.append({"seed": seed, "replies": list(episode.replies)})
            rows.append(episode.rows())
    return script, rows


def _redrawn(bench: Bench) -> Iterator[str]:
    """Yield hidden values that decide the reward and change when the same seed is reset."""
    for seed in bench.few_seeds[:3]:
        bench.env.reset(seed=seed)
        before = _state(bench.env)
        bench.env.reset(seed=seed)
        after = _state(bench.env)
        for path in before:
            if path not in after or before[path] == after[path]:
                continue
            if problem := _decides(bench, seed, path):
                yield problem


def _decides(bench: Bench, seed: int, path: str) -> str | None:
    env = bench.env
    env.reset(seed=seed)
    secret = _state(env).get(path, "")
    with_it = env.step(bench.hooks.reply(secret))[1]
    env.reset(seed=seed)
    if _state(env).get(path) == secret:
        return None
    without = env.step(bench.hooks.reply(secret))[1]
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


def oracle(bench: Bench) -> Line:
    """Check that the oracle solves every task within the contract."""
    name = "oracle"
    if bench.oracle is None:
        return skipped(name, "it has no oracle")
    played = bench.solved
    problems = [
        f"seed {seed}: return {total(episode):g}, "
        f"{'terminated' if episode.steps[-1].terminated else 'truncated'} "
        f"after {len(episode.steps)} turns"
        for seed, episode in played
        if not is_solved(episode, bench.env) or not episode.steps[-1].terminated
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
        for problem in episode_problems(episode, bench.env)
    ]
    share = 1 - len({p.partition(",")[0] for p in problems}) / len(played)
    meaning = meaning_of_solved(played[0][1], bench.env)
    return judged(
        name,
        share,
        f"of {len(played)} tasks solved, that is, with {meaning}",
        problems=[*problems, *contract][:10],
    )


def replies(bench: Bench) -> Line:
    """Check that useless replies neither raise nor earn much."""
    kinds = _kinds(bench)
    problems: list[str] = []
    evidence: list[str] = []
    worst = 0.0
    groups: dict[str, list[float]] = {}
    same = [total(episode) for seed, episode in bench.solved if seed in bench.few_seeds]
    best = sum(same) / max(1, len(same))
    for kind, (reply, is_blind) in kinds.items():
        returns = _returns(bench, kind, reply, problems)
        if not returns:
            continue
        mean = sum(returns) / len(returns)
        if bench.solved and len(returns) == len(bench.few_seeds) and mean > best + 1e-6:
            problems.append(f"{kind} earns {mean:.3g}, more than the oracle's {best:.3g}")
        if is_blind:
            groups.setdefault(kind.partition(" ")[0], []).extend(returns)
            groups.setdefault(kind, []).extend(returns)
    for group, returns in groups.items():
        mean = sum(returns) / len(returns)
        worst = max(worst, mean)
        if mean > 0:
            evidence.append(f"{group}: mean return {mean:.3g} over {len(returns)} episodes")
        if lower_bound(returns) > bench.limit:
            problems.append(f"{group}: mean return {mean:.3g}, above the limit {bench.limit:.3g}")
    detail = f"best mean return of {len(kinds)} kinds of useless replies"
    return judged("replies", worst, detail, problems=problems, evidence=evidence)


def _returns(bench: Bench, kind: str, reply: Reply, problems: list[str]) -> list[float]:
    """Return what one kind of reply earns on a few tasks, and record problems."""
    returns: list[float] = []
    for seed in bench.few_seeds:
        try:
            episode = bench.play(reply, seed)
        except (EnvFault, _GaveUpError):
            continue
        except Exception as error:  # noqa: BLE001  # whatever an environment raises is the finding
            problems.append(f"{kind} makes it raise at seed {seed}: {describe(error)[:200]}")
            continue
        problems += _paid_errors(kind, seed, episode)
        returns.append(total(episode))
    return returns


def _paid_errors(kind: str, seed: int, episode: Episode) -> Iterator[str]:
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


def _kinds(bench: Bench) -> dict[str, tuple[Reply, bool]]:
    """Return replies by kind, with whether each kind is blind and so cannot solve a task."""
    hooks = bench.hooks
    kinds: dict[str, tuple[Reply, bool]] = {
        f"malformed {n}: {text[:24]!r}": (_constant(text), True)
        for n, text in enumerate(BAD_REPLIES)
    }
    for digit in _DIGITS:
        kinds[f"digit {digit}"] = (_constant(hooks.reply(digit)), True)
    kinds["enormous reply"] = (_constant("a " * (_ENORMOUS // 2)), True)
    kinds["enormous answer"] = (_constant(hooks.reply("9" * _ENORMOUS)), True)
    kinds["prompt echoed"] = (_said, True)
    kinds["prompt echoed as an answer"] = (lambda context: hooks.reply(_said(context)), True)
    numbers = " ".join(str(n) for n in range(181))
    kinds["list of numbers"] = (_constant(numbers), True)
    kinds["list of numbers as an answer"] = (_constant(hooks.reply(numbers)), True)
    kinds["special values"] = (
        lambda context: hooks.reply(
            ("None", "nan", "inf", "null", "True", "[]", "*", ".*")[context.turn % 8]
        ),
        True,
    )
    if (choices := hooks.choices) is not None:
        kinds["all of the environment's own choices"] = (
            lambda context: "\n".join(hooks.reply(c) for c in choices(context.task)),
            False,
        )
    if bench.oracle is not None:
        solve = _or_give_up(bench.oracle)
        kinds |= {
            "oracle's reply cut short": (_mangled(solve, lambda text: text[:-1]), False),
            "oracle's reply without its start": (_mangled(solve, lambda text: text[1:]), False),
            "oracle's reply unclosed": (_mangled(solve, lambda text: "<tool_call>{" + text), False),
            "oracle's reply before a broken call": (
                _mangled(solve, lambda text: text + "\n<tool_call>{"),
                False,
            ),
            "oracle's reply as an unknown tool": (
                _mangled(solve, lambda text: text.replace('"name": "', '"name": "no_such_')),
                False,
            ),
            "oracle's first reply repeated": (_repeated(solve), False),
            "oracle's rewarded reply repeated": (_stuck(solve, bench), False),
            "oracle's replies, each twice": (lambda c: solve(_earlier(c, c.turn // 2)), False),
        }
    return kinds


def _constant(text: str) -> Reply:
    return lambda _: text


def _said(context: PolicyContext) -> str:
    parts = context.messages[0 if len(context.messages) < 2 else 1]["content"]
    if isinstance(parts, str):
        return parts[:8000]
    texts = [str(part.get("text", "")) for part in cast("list[dict[str, Any]]", parts)]
    return " ".join(texts)[:8000]


def _or_give_up(oracle: Policy) -> Reply:
    """Return an oracle whose exceptions are not mistaken for the environment's.

    An oracle may look at the environment and raise if its replies were not carried out.
    """

    def reply(context: PolicyContext) -> str:
        try:
            return oracle(context)
        except Exception as error:
            raise _GaveUpError from error

    return reply


def _mangled(solve: Reply, change: Callable[[str], str]) -> Reply:
    return lambda context: change(solve(context))


def _earlier(context: PolicyContext, turn: int) -> PolicyContext:
    return PolicyContext(
        env=context.env, task=context.task, turn=turn, messages=context.messages, seed=context.seed
    )


def _repeated(solve: Reply) -> Reply:
    first: dict[int, str] = {}

    def reply(context: PolicyContext) -> str:
        if context.turn == 0:
            first[context.seed] = solve(context)
        return first[context.seed]

    return reply


def _stuck(solve: Reply, bench: Bench) -> Reply:
    """Repeat the oracle's first rewarded reply until the end."""
    replies = {
        seed: (turn, episode.replies[turn])
        for seed, episode in bench.solved[::-1]
        for turn in [n for n, step in enumerate(episode.steps) if step.reward > 0][:1]
    }

    def reply(context: PolicyContext) -> str:
        turn, text = replies.get(context.seed, (64, ""))
        return text if context.turn >= turn else solve(context)

    return reply


def tools(bench: Bench) -> Line:
    """Check that calling tools in any order neither raises nor earns much."""
    specs = bench.env.tools
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
    best = 0.0
    for kind, said in orders.items():
        returns = _returns(bench, kind, lambda c, said=said: said[c.turn % len(said)], problems)
        if returns:
            mean = sum(returns) / len(returns)
            best = max(best, mean)
            if lower_bound(returns) > bench.limit:
                problems.append(
                    f"{kind}: mean return {mean:.3g}, above the limit {bench.limit:.3g}"
                )
    detail = f"best mean return of {len(orders)} useless call orders"
    return judged("tools", best, detail, problems=problems)


_ARGUMENTS: Final[Mapping[str, Any]] = {
    "no arguments": {},
    "null": None,
    "a list": [1],
    "unknown arguments": {"no_such_argument": 1},
}
