"""Measure how long storing a very long trajectory blocks other threads.

A trajectory of 40 turns and 255,000 tokens is prepared on a worker thread, as a rollout does. The
main thread stands in for the event loop: it tries to run every millisecond, and its longest wait is
the cost of storing. Goal: at most 20 ms above the machine's own noise.
"""

import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from harness import run, sized

from envkit.messages import Message
from envkit.trajectory import Segment, SegmentKind, StopReason, Trajectory, TrajectoryWriter

TURNS: Final = 40
ROUNDS: Final = 5


def long_trajectory(tokens: int) -> Trajectory:
    """Return a prompt of four fifths of the tokens, then replies and observations."""
    rng = np.random.default_rng(0)
    share = tokens // (10 * TURNS)
    segments = [text_segment(rng, SegmentKind.PROMPT, 0, tokens - share * (2 * TURNS - 1))]
    for turn in range(TURNS):
        segments.append(text_segment(rng, SegmentKind.MODEL, turn, share))
        if turn + 1 < TURNS:
            segments.append(text_segment(rng, SegmentKind.OBSERVATION, turn + 1, share))
    return trajectory_of(segments, messages=({"role": "user", "content": "word " * tokens},))


def trajectory_of(segments: Sequence[Segment], messages: tuple[Message, ...] = ()) -> Trajectory:
    """Return an episode that earned 1, without the records of its turns."""
    return Trajectory(
        episode_id="long",
        env_id="benchmark-v0",
        seed=0,
        task={},
        segments=tuple(segments),
        turns=(),
        messages=messages,
        reward=1.0,
        stop_reason=StopReason.TERMINATED,
    )


def text_segment(rng: np.random.Generator, kind: SegmentKind, turn: int, count: int) -> Segment:
    """Return a segment of random tokens; a reply has its share of the reward."""
    ids = tuple(rng.integers(0, 150_000, count).tolist())
    is_reply = kind is SegmentKind.MODEL
    return Segment(
        kind=kind,
        turn=turn,
        wire_ids=ids,
        train_ids=ids,
        loss_mask=(int(is_reply),) * count,
        logprobs=tuple((-rng.random(count)).tolist()) if is_reply else (0.0,) * count,
        reward=1.0 / TURNS if is_reply else None,
    )


def longest_wait(work: threading.Thread | None, seconds: float) -> float:
    """Return the longest gap between two wake-ups of this thread, in milliseconds."""
    longest, ends = 0.0, time.perf_counter() + seconds
    last = time.perf_counter()
    while work.is_alive() if work is not None else last < ends:
        time.sleep(0.001)
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    return longest * 1e3


def measure(tokens: int) -> dict[str, float]:
    """Return the figures of the quietest of a few rounds."""
    trajectory = long_trajectory(tokens)
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, TrajectoryWriter(folder) as writer:
        for _ in range(ROUNDS):
            noise = longest_wait(None, 0.5)
            work = threading.Thread(target=lambda: writer.append(writer.prepare(trajectory)))
            started = time.perf_counter()
            work.start()
            wait = longest_wait(work, 0.0)
            spent = (time.perf_counter() - started) * 1e3
            rounds.append({"longest_wait_ms": wait, "noise_ms": noise, "storing_ms": spent})
        rounds[0]["megabytes"] = writer.path.stat().st_size / ROUNDS / 1e6
    best = min(rounds, key=lambda figures: figures["longest_wait_ms"])
    return {**best, "megabytes": rounds[0]["megabytes"]}


if __name__ == "__main__":
    run(measure, tokens=sized(255_000, 4_000))
