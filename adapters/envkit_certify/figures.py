"""Certification lines: recordings, speed and memory."""

import gc
import statistics
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from envkit.errors import StorageError
from envkit_certify.certified import CertifiedEnv
from envkit_certify.golden import changes, load
from envkit_certify.lines import CertificateLine, Verdict, judged, skipped
from envkit_certify.target import resolve

_TIMED_EPISODES = 8


def golden(subject: CertifiedEnv) -> CertificateLine:
    """Replay recorded episodes."""
    files = subject.golden_files()
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
        make = resolve(subject.plan.target, content["kwargs"])
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


def speed(subject: CertifiedEnv) -> CertificateLine:
    """Measure how long calls take."""
    reply = subject.oracle or (lambda _: "")
    resets: list[float] = []
    whole: list[float] = []
    turns = 0
    for seed in list(subject.seeds)[:_TIMED_EPISODES]:
        start = time.perf_counter()
        subject.env.reset(seed=seed)
        resets.append(time.perf_counter() - start)
        start = time.perf_counter()
        turns += len(subject.play(reply, seed=seed).steps)
        whole.append(time.perf_counter() - start)
    per_turn = sum(whole) / max(1, turns)
    return CertificateLine(
        name="speed",
        verdict=Verdict.FIGURE,
        value=round(per_turn * 1000, 3),
        detail="ms per oracle turn, including the oracle's own time"
        if subject.oracle
        else "ms per turn with empty replies",
        evidence=(
            f"reset: median {statistics.median(resets) * 1000:.2f} ms",
            f"episode: median {statistics.median(whole) * 1000:.2f} ms, {turns} turns in total",
        ),
    )


def memory(subject: CertifiedEnv) -> CertificateLine:
    """Measure the process's peak memory."""
    if sys.platform == "win32":
        return skipped("memory", "this system does not measure it")
    import resource

    gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = peak / (1 << 20) if sys.platform == "darwin" else peak / (1 << 10)
    return CertificateLine(
        name="memory",
        verdict=Verdict.FIGURE,
        value=round(megabytes, 1),
        detail="MiB at the peak in the playing process, including Python and libraries",
        evidence=(f"{subject.turns} turns were played",),
    )
