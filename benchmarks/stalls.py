"""Measure how long the event loop is held while thousands of episodes with images are played.

Episodes of the simulated desktop, all at once; every turn has a new screenshot. Replies take random
times. With `--engine http` the engine is a client of `reliability_server.py` in another process,
which gets every screenshot; else the desktop's oracle replies.

A task that sleeps for two milliseconds measures the loop: a stall is the CPU time of the loop's
thread between two beats, which other load on the machine does not change. A thread looks every ten
milliseconds; if the beat is late, it notes where the loop's thread is. `places` are these lines,
from the inside out, with the most CPU time that was seen there.

    python benchmarks/stalls.py
    python benchmarks/stalls.py --engine http --episodes 512
    python benchmarks/stalls.py --episodes 8 --max-s 0.1    # a check of the script
"""

import asyncio
import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from harness import memory_mb, run, sized
from reliability_load import server

import envkit
from envkit.rollout import Limits, RolloutConfig, ScriptedEngine, collect
from envkit.rollout.engine import Engine
from envkit.tokens import ChatCodec, load_codec
from envkit_desktop.policies import oracle
from envkit_sglang import SGLangEngine
from envkit_transformers import builtin_model_dir

BEAT_S: Final = 0.002
LOOK_S: Final = 0.01
LONG_S: Final = 0.05
SHOWN_S: Final = 0.03
MAX_TURNS: Final = 6
DEPTH: Final = 6
"""Calls of a place that are shown."""
BINS_MS: Final = (5, 10, 20, 50, 100, 1000)


class Heartbeat:
    """Measures the CPU time that the event loop's thread spends between two beats."""

    def __init__(self) -> None:
        self.stalls: list[float] = []
        """Seconds of CPU time of each beat."""
        self.late: list[float] = []
        """Seconds by which each beat was late, which other load makes longer."""
        self.places: dict[str, float] = {}
        """Where the loop was when a beat was late, with the longest CPU time seen there."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._thread = threading.get_ident()
        self._began = time.thread_time()
        self._ended = threading.Event()

    @contextmanager
    def beating(self) -> Generator[None]:
        """Measure until the context ends."""
        watching = threading.Thread(target=self._watch, daemon=True)
        watching.start()
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            self._ended.set()
            watching.join()

    async def _beat(self) -> None:
        while True:
            self._began, due = time.thread_time(), time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.stalls.append(time.thread_time() - self._began)
            self.late.append(time.monotonic() - due)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            spent = time.clock_gettime(self._clock) - self._began
            if spent > SHOWN_S:
                frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # no other way
                place = " < ".join(list(_calls(frames.get(self._thread)))[:DEPTH])
                self.places[place] = max(spent, self.places.get(place, 0.0))

    def figures(self) -> dict[str, Any]:
        """Return the longest stalls, their distribution and their places."""
        stalls = [1e3 * one for one in self.stalls]
        places = sorted(self.places.items(), key=lambda one: -one[1])
        return {
            "longest_stall_ms": max(stalls),
            "stalls_over_50_ms": sum(one > 1e3 * LONG_S for one in stalls),
            "beats": len(stalls),
            "latest_beat_ms": 1e3 * max(self.late),
            **{f"beats_up_to_{top}_ms": sum(one <= top for one in stalls) for top in BINS_MS},
            "places": {place: round(1e3 * spent) for place, spent in places[:8]},
        }


def _calls(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        code = frame.f_code
        yield f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back


async def played(codec: ChatCodec, engine: Engine, episodes: int) -> dict[str, Any]:
    """Play all episodes at once and return the figures."""
    limits = Limits(max_turns=MAX_TURNS, max_response_tokens=10**6, max_context_tokens=10**6)
    heart, turns, images = Heartbeat(), 0, 0
    started, began = time.monotonic(), time.process_time()
    with heart.beating():
        async for one in collect(
            lambda: envkit.make("computer-use-v0"),
            engine,
            codec,
            episodes=episodes,
            concurrency=episodes,
            config=RolloutConfig(limits=limits),
        ):
            assert one.fault is None, one.fault
            turns, images = turns + len(one.turns), images + one.image_count
    await engine.aclose()
    return {
        "episodes": episodes,
        "turns": turns,
        "images": images,
        "seconds": time.monotonic() - started,
        "cpu_ms_per_turn": 1e3 * (time.process_time() - began) / turns,
        "memory_mb": memory_mb(),
        "load_average": os.getloadavg()[0],
        **heart.figures(),
    }


def image_tokens(codec: ChatCodec) -> int:
    """Return the tokens of a screenshot."""
    observation, _ = envkit.make("computer-use-v0").reset(seed=0)
    (feature,) = codec.image_features(observation["images"])
    return feature.token_count


def measure(engine: str, episodes: int, max_s: float) -> dict[str, Any]:
    """Return the figures of one engine."""
    codec = load_codec(builtin_model_dir(), lazy_features=True)
    with contextlib.ExitStack() as stack:
        if engine == "http":
            client = SGLangEngine(
                stack.enter_context(server(max_s / 2, image_tokens=image_tokens(codec))),
                check_logprobs=False,
                max_connections=episodes,
            )
            return asyncio.run(played(codec, client, episodes))
        rng = random.Random(0)
        scripted = ScriptedEngine(codec, oracle(), latency=lambda _: rng.uniform(0, max_s))
        return asyncio.run(played(codec, scripted, episodes))


if __name__ == "__main__":
    run(
        measure,
        engine={"choices": ("scripted", "http"), "default": "scripted"},
        episodes=sized(4096, 4, "concurrent episodes"),
        max_s=sized(60.0, 0.1, "maximum seconds of a scripted reply; half of it with http"),
    )
