"""Certification line: an episode plays the same however and beside whatever it is played."""

import copy
import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast
from unittest import mock

from envkit.checker.under_test import CheckedEpisode, difference, recorded, row
from envkit.env import Env, PolicyContext, Reset, Step
from envkit.errors import ConfigurationError, ContractError, EnvFault, EpisodeStateError, describe
from envkit.success import reaches, verdict_in
from envkit.threads.workers import outcome
from envkit.toolcalls import parse_tool_calls
from envkit_certify.certified import CertifiedEnv
from envkit_certify.lines import CertificateLine, judged
from envkit_certify.target import resolve

_EPISODES: Final = 3
_TURNS: Final = 8
_THREADS: Final = 4
_MONTHS_S: Final = 1.3e7
"""Changes the month, the day of the week and the hour."""

T = TypeVar("T")


class _Needs(Enum):
    """What a way to play needs from an environment."""

    INSTANCES = auto()
    THREADS = auto()
    SNAPSHOT = auto()


_Rows = Callable[[CertifiedEnv, int, CheckedEpisode], list[str]]
"""Plays a seed's recorded replies again, in some way, and returns the rows."""


def state(subject: CertifiedEnv) -> CertificateLine:
    """Check that episodes are alike in every way to play them, and that nothing is shared."""
    episodes = list(_episodes(subject))
    problems: list[str] = []
    capable = subject.env.capabilities
    has = {
        _Needs.INSTANCES: capable.max_sessions is None,
        _Needs.THREADS: capable.thread_safe,
        _Needs.SNAPSHOT: capable.snapshot,
    }
    ways = {
        name: rows
        for name, (rows, *needs) in _WAYS.items()
        if capable.deterministic and all(has[need] for need in needs)
    }
    for name, rows in ways.items():
        problems += _differing(subject, name, rows, episodes)
    for check in _CHECKS:
        try:
            problems += check(subject, episodes)
        except EnvFault:
            raise
        except Exception as error:  # noqa: BLE001  # foreign code
            problems.append(describe(error)[:300])
    detail = f"ways to play {len(episodes)} episodes again, and {len(_CHECKS)} other checks"
    return judged("state", len(ways), detail, problems=problems)


def _episodes(subject: CertifiedEnv) -> Iterator[tuple[int, CheckedEpisode]]:
    """Yield episodes with right replies, and with wrong ones."""
    solved = sorted(subject.solved[:8], key=lambda entry: len(entry[1].steps))
    yield from [entry for entry in solved if len(entry[1].steps) <= _TURNS][-1:]
    seed = subject.few_seeds[0]
    known = next((e.replies for s, e in subject.solved if s == seed), ())

    def mixed(context: PolicyContext) -> str:
        turn = context.turn // 2
        if context.turn % 2 and turn < len(known):
            return known[turn]
        return subject.hooks.reply(str(turn))

    yield seed, subject.play(mixed, seed=seed, max_turns=_TURNS)


def _differing(
    subject: CertifiedEnv, name: str, rows: _Rows, episodes: Sequence[tuple[int, CheckedEpisode]]
) -> Iterator[str]:
    for seed, episode in episodes:
        try:
            after = rows(subject, seed, episode)
        except EnvFault:
            raise
        except Exception as error:  # noqa: BLE001  # foreign code
            yield f"{name}: seed {seed} raises {describe(error)[:200]}"
            return
        if (where := difference(episode.rows(), after)) is not None:
            yield f"{name}: seed {seed} plays differently at {where}"
            return


@contextmanager
def _another(subject: CertifiedEnv) -> Generator[Env]:
    env = subject.make()
    try:
        yield env
    finally:
        env.close()


def _interrupted(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Begin other episodes, then leave them in the middle."""
    for other in (seed + 1, seed):
        player = subject.begin(lambda _: episode.replies[0], seed=other)
        if len(episode.replies) > 1 or other != seed:
            player.turn()
    return subject.replay(episode, seed=seed).rows()


def _solved_before(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    for other, known in subject.solved[-2:]:
        subject.replay(known, seed=other)
    return subject.replay(episode, seed=seed).rows()


def _later(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Play on another day."""
    seconds, nanoseconds = time.time, time.time_ns

    def later() -> float:
        return seconds() + _MONTHS_S

    def later_ns() -> int:
        return nanoseconds() + int(_MONTHS_S * 1e9)

    with mock.patch.object(time, "time", later), mock.patch.object(time, "time_ns", later_ns):
        return subject.replay(episode, seed=seed).rows()


def _rude(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Change everything that the environment was given or returned."""
    with _another(subject) as env:
        options = {"task": copy.deepcopy(episode.task)} if episode.task else None
        moment: Any = Reset(*env.reset(seed=seed, options=options))
        if options is not None:
            _spoil(options["task"])
        rows: list[str] = []
        for reply in episode.replies:
            _spoil(moment.info)
            moment = Step(*env.step(reply))
            rows.append(row(moment))
            _spoil(moment.observation)
        return [episode.rows()[0], *rows]


def _spoil(data: object) -> None:
    """Empty nested lists and dicts in place."""
    inside: list[Any] = []
    if isinstance(data, dict):
        inside = list(data.values())
    elif isinstance(data, list):
        inside = list(data)
    for value in inside:
        _spoil(value)
    if isinstance(data, dict | list):
        data.clear()


def _beside(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Play beside an instance that plays other tasks."""
    others = subject.solved or [(seed, episode)]
    with _another(subject) as env, _another(subject) as second:
        player = subject.begin(recorded(episode), seed=seed, env=env)
        number = 0
        while len(player.steps) < len(episode.replies):
            number += 1
            other, known = others[-number % len(others)]
            subject.begin(recorded(known), seed=other, env=second).turn()
            player.turn()
        return player.rows()


def _copied(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Play on with a deep copy in the middle of an episode, then with the original."""
    half = len(episode.replies) // 2
    player = subject.begin(recorded(episode), seed=seed)
    for _ in range(half):
        player.turn()
    try:
        twin = copy.deepcopy(subject.env)
    except Exception:  # noqa: BLE001  # a copy is not promised
        return episode.rows()
    for reply in ("", *episode.replies[half:]):
        if not Step(*twin.step(reply)).observation or not twin._running:  # pyright: ignore[reportPrivateUsage]  # whether it goes on
            break
    for _ in episode.replies[half:]:
        player.turn()
    return player.rows()


def _rendering(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Render before every turn."""
    env = subject.env
    mode, env.render_mode = env.render_mode, "ansi"
    try:
        player = subject.begin(recorded(episode), seed=seed, env=env)
        while len(player.steps) < len(episode.replies):
            with suppress(NotImplementedError):
                env.render()
            player.turn()
    finally:
        env.render_mode = mode
    return player.rows()


def _closed(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Close another instance in the middle of an episode."""
    player = subject.begin(recorded(episode), seed=seed)
    while len(player.steps) < len(episode.replies):
        with _another(subject) as env:
            env.reset(seed=seed + 1)
        player.turn()
    return player.rows()


def _each_on_a_thread(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Play each turn on a new thread."""
    over = threading.Event()
    with _another(subject) as env:
        try:
            made = _threaded(lambda: subject.begin(recorded(episode), seed=seed, env=env), over)
            for _ in episode.replies:
                _threaded(made.turn, over)
        finally:
            over.set()
        return made.rows()


def _threaded(call: Callable[[], T], over: threading.Event) -> T:
    """Call a function on a new thread, which lives until `over`: a later one may take its id."""
    ended: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        ended.put(outcome(call))
        over.wait()

    threading.Thread(target=run, daemon=True).start()
    result, error = ended.get()
    if error is not None:
        raise error
    return cast(T, result)


def _at_once(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Play on several threads at once, with others that play other tasks."""
    others = subject.solved or [(seed, episode)]
    plays = [(seed, episode), *(others[-n % len(others)] for n in range(1, _THREADS))]
    results: dict[int, list[list[str]]] = {}
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(plays))

    def run(number: int) -> None:
        try:
            other, known = plays[number]
            with _another(subject) as env:
                barrier.wait(timeout=10)
                results[number] = [
                    subject.replay(known, seed=other, env=env).rows() for _ in range(2)
                ]
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(n,)) for n in range(len(plays))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    wrong = [
        rows
        for number, known in results.items()
        for rows in known
        if rows != plays[number][1].rows()
    ]
    return wrong[0] if wrong else episode.rows()


def _saved(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Save at every turn, and go on."""
    player = subject.begin(recorded(episode), seed=seed)
    while len(player.steps) < len(episode.replies):
        subject.env.snapshot()
        player.turn()
        subject.env.snapshot()
    return player.rows()


def _restored(subject: CertifiedEnv, seed: int, episode: CheckedEpisode) -> list[str]:
    """Go back to every turn, twice, on instances that played something else meanwhile."""
    env = subject.env
    env.reset(seed=seed)
    saved = [env.snapshot()]
    for reply in episode.replies[:-1]:
        env.step(reply)
        saved.append(env.snapshot())
    rows = episode.rows()
    with _another(subject) as other:
        for turn in sorted({0, len(saved) // 2, len(saved) - 1}):
            data = saved[turn]
            for target in (env, other, other):
                target.reset(seed=seed + 1 + turn)
                target.step(episode.replies[0])
                target.restore(data)
                now = [row(Step(*target.step(reply))) for reply in episode.replies[turn:]]
                if now != rows[turn + 1 :]:
                    return [*rows[: turn + 1], *now, "restored"]
                if target is other and turn == 0:
                    _same_draw(env, other, data)
    return rows


def _same_draw(env: Env, other: Env, data: bytes) -> None:
    """Check that an unseeded reset draws the same after a restore.

    Raises:
        ContractError: It does not.
    """
    tasks: list[object] = []
    for target in (env, other):
        target.restore(data)
        target.reset()
        tasks.append(copy.deepcopy(target.task))
    if tasks[0] != tasks[1]:
        raise ContractError("after restore(), reset() without a seed draws another task")


_WAYS: Final[Mapping[str, tuple[_Rows, *tuple[_Needs, ...]]]] = MappingProxyType(
    {
        "after interrupted episodes": (_interrupted,),
        "after solved episodes": (_solved_before,),
        "on another day": (_later,),
        "by a caller that edits what it was given": (_rude, _Needs.INSTANCES),
        "beside instances that play other tasks": (_beside, _Needs.INSTANCES),
        "while other instances are closed": (_closed, _Needs.INSTANCES),
        "while a deep copy plays on": (_copied, _Needs.INSTANCES),
        "with render() at every turn": (_rendering,),
        "with a new thread per turn": (_each_on_a_thread, _Needs.INSTANCES, _Needs.THREADS),
        "on several threads at once": (_at_once, _Needs.INSTANCES, _Needs.THREADS),
        "with snapshot() at every turn": (_saved, _Needs.SNAPSHOT),
        "after restore() on used instances": (_restored, _Needs.INSTANCES, _Needs.SNAPSHOT),
    }
)

_Played = Sequence[tuple[int, CheckedEpisode]]


def _kept(subject: CertifiedEnv, episodes: _Played) -> Iterator[str]:
    """Check that what was returned, and the caller's task, do not change afterwards."""
    for seed, episode in episodes:
        task = copy.deepcopy(episode.task)
        options = {"task": task} if task else None
        held: list[tuple[Any, str]] = []
        moment: Any = Reset(*subject.env.reset(seed=seed, options=options))
        held.append((moment, _frozen(moment)))
        for reply in episode.replies:
            moment = Step(*subject.env.step(reply))
            held.append((moment, _frozen(moment)))
        subject.env.reset(seed=seed + 1)
        if task != episode.task:
            yield f"seed {seed}: playing changes the caller's options['task']"
        for turn, (kept, before) in enumerate(held):
            if _frozen(kept) != before:
                yield f"seed {seed}: what turn {turn} returned changes later"
                break
    source = subject.env.tasks
    if source is not None:
        index = 0
        first = copy.deepcopy(source.task(index))
        subject.env.reset(seed=subject.plan.seed, options={"task": source.task(index)})
        subject.env.step("")
        if source.task(index) != first:
            yield "playing a task changes it in the task source"


def _frozen(moment: Reset | Step) -> str:
    seen = moment.observation
    images = [hash(image.pil().tobytes()) for image in seen["images"]]
    return json.dumps([seen["text"], images, moment.info], sort_keys=True, default=repr)


def _ended(subject: CertifiedEnv, episodes: _Played) -> Iterator[str]:
    """Check that no reply is taken after the end, right or wrong."""
    for seed, episode in episodes:
        if not episode.ended:
            continue
        subject.replay(episode, seed=seed).rows()
        for reply in (episode.replies[-1], "", episode.replies[0]):
            try:
                step = Step(*subject.env.step(reply))
            except EpisodeStateError:
                continue
            yield f"seed {seed}: a step after the end returns, with reward {step.reward:g}"
            break


def _limited(subject: CertifiedEnv, episodes: _Played) -> Iterator[str]:
    """Check that max_turns limits an episode, and truncates it."""
    del episodes
    ends: list[bool] = []
    for turns in (2, 3):
        try:
            env = resolve(subject.plan.target, {**subject.plan.kwargs, "max_turns": turns})()
        except (ConfigurationError, ContractError, TypeError, ValueError):
            return
        try:
            last: list[Step] = []
            env.reset(seed=subject.plan.seed)
            while len(last) <= turns and not (last and (last[-1].terminated or last[-1].truncated)):
                last.append(Step(*env.step("")))
            if len(last) > turns or env.max_turns > turns:
                yield f"made with max_turns={turns}, an episode goes on after {len(last)} turns"
            ends.append(len(last) == turns and bool(last[-1].terminated))
        finally:
            env.close()
    if all(ends):
        yield "an episode that ends at max_turns is terminated instead of truncated"


def _drawn(subject: CertifiedEnv, episodes: _Played) -> Iterator[str]:
    """Check that resets without a seed go on drawing tasks, the same ones after the same seed."""
    del episodes
    env = subject.env
    if not env.capabilities.deterministic:
        return
    draws: list[list[str]] = []
    for _ in range(2):
        seen: list[str] = []
        env.reset(seed=subject.plan.seed)
        for _ in range(6):
            start = Reset(*env.reset())
            seen.append(json.dumps([env.task, start.observation["text"]], default=repr))
        draws.append(seen)
    if draws[0] != draws[1]:
        yield "after the same seed, resets without a seed draw other tasks"
    seeds = {json.dumps(e.task, default=repr) for _, e in subject.solved}
    if len(set(draws[0])) == 1 and len(seeds) > 3:
        yield "reset() without a seed plays the same task every time"


def _verdicts(subject: CertifiedEnv, episodes: _Played) -> Iterator[str]:
    """Check that the success term agrees with the reward."""
    threshold = None if subject.env.threshold_is_mean else subject.env.reward_threshold
    for seed, episode in (*subject.solved, *episodes):
        steps = episode.steps
        verdicts = [v for v in (verdict_in(step.info) for step in steps) if v is not None]
        if not verdicts or not episode.ended:
            continue
        earned = episode.total
        is_paid = earned > 0 if threshold is None else reaches(earned, threshold)
        if verdicts[-1] and not is_paid and earned <= 0:
            yield f"seed {seed}: info['is_success'] is true for a return of {earned:g}"
        if not verdicts[-1] and threshold is not None and is_paid:
            yield f"seed {seed}: info['is_success'] is false for a return of {earned:g}"


def _given(subject: CertifiedEnv, episodes: _Played) -> Iterator[str]:
    """Check that the oracle solves a given task under any seed."""
    del episodes
    oracle = subject.oracle
    if oracle is None or not subject.env.capabilities.replay_safe:
        return
    for seed, episode in subject.solved[:_EPISODES]:
        if not episode.task or episode.total <= 0:
            continue
        again = subject.play(oracle, seed=seed + 12345, task=episode.task)
        if again.total <= 0:
            yield f"seed {seed}: its task under another seed is not solved by the oracle"


def _calls(subject: CertifiedEnv, episodes: _Played) -> Iterator[str]:
    """Check that the oracle's calls fit the schemas of the tools."""
    del episodes
    for seed, episode in subject.solved[:_EPISODES]:
        subject.env.reset(seed=seed)
        tools = {spec.name: spec for spec in subject.env.tools}
        for reply, step in zip(episode.replies, episode.steps, strict=True):
            if not tools or step.info.get("parse_error") is not None:
                continue
            for call in parse_tool_calls(reply, tools=tuple(tools.values())).calls:
                spec = tools.get(call.name)
                wrong = ["no such tool"] if spec is None else spec.validate(call.arguments)
                if wrong:
                    yield f"seed {seed}: the oracle's call of {call.name!r}: {wrong[0]}"


_CHECKS: Final = (_kept, _ended, _limited, _drawn, _verdicts, _given, _calls)
