"""Certification lines: recordings, speed and memory."""

import gc
import statistics
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from envkit.checker.subject import Reply
from envkit.env import PolicyContext
from envkit.errors import StorageError
from envkit_certify.bench import Bench
from envkit_certify.golden import changes, load
from envkit_certify.lines import Line, Verdict, judged, skipped
from envkit_certify.target import resolve

_TIMED_EPISODES = 8


def golden(bench: Bench) -> Line:
    """Replay recorded episodes."""
    files = bench.golden_files()
    if not files:
        return skipped("golden", "no recording; make one with `envkit golden ID --out FILE`")
    problems: list[str] = []
    versions: list[str] = []
    episodes = 0
    for path in files:
        try:
            content = load(path)
        except StorageError as error:
            problems.append(str(error))
            continue
        episodes += len(content["episodes"])
        make = resolve(bench.plan.target, content["kwargs"])
        problems += [f"{path.name}: {change}" for change in changes(content, make=make)]
        versions += _other_versions(content)
    detail = "recorded episodes replayed"
    return judged(
        "golden",
        episodes,
        detail,
        problems=problems[:20],
        evidence=tuple(dict.fromkeys(versions)) if problems else (),
    )


def _other_versions(content: dict[str, Any]) -> Iterator[str]:
    """Yield the libraries whose version differs from the recording."""
    for name, was in content.get("made_with", {}).items():
        if version(name) != was:
            yield f"recorded with {name} {was}, replayed with {version(name)}"


def speed(bench: Bench) -> Line:
    """Measure how long calls take."""
    reply: Reply = bench.oracle or _empty
    resets: list[float] = []
    whole: list[float] = []
    turns = 0
    for seed in list(bench.seeds)[:_TIMED_EPISODES]:
        start = time.perf_counter()
        bench.env.reset(seed=seed)
        resets.append(time.perf_counter() - start)
        start = time.perf_counter()
        turns += len(bench.play(reply, seed).steps)
        whole.append(time.perf_counter() - start)
    per_turn = sum(whole) / max(1, turns)
    return Line(
        name="speed",
        verdict=Verdict.FIGURE,
        value=round(per_turn * 1000, 3),
        detail="ms per oracle turn, including the oracle's own time"
        if bench.oracle
        else "ms per turn with empty replies",
        evidence=(
            f"reset: median {statistics.median(resets) * 1000:.2f} ms",
            f"episode: median {statistics.median(whole) * 1000:.2f} ms, {turns} turns in total",
        ),
    )


def _empty(_: PolicyContext) -> str:
    return ""


def memory(bench: Bench) -> Line:
    """Measure the process's peak memory."""
    if sys.platform == "win32":
        return skipped("memory", "this system does not measure it")
    import resource

    gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = peak / (1 << 20) if sys.platform == "darwin" else peak / (1 << 10)
    return Line(
        name="memory",
        verdict=Verdict.FIGURE,
        value=round(megabytes, 1),
        detail="MiB at the peak in the playing process, including Python and libraries",
        evidence=(f"{bench.subject.turns} turns were played",),
    )
