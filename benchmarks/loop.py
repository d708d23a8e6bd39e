"""Measure the rollout loop: CPU time per turn, and the makespan of many episodes.

Overhead: episodes of an instant text environment with scripted replies, a real tokenizer and a real
chat template. Process CPU time divided by turns, and the same without the codec's share, which is
measured separately on the same texts.

Makespan: thousands of concurrent episodes whose replies and steps take log-normal times. Ideal is
the longest episode's own waiting; the loop adds the rest. The process is pinned to one core.

Collections: the longest block of the event loop by a garbage collection, in CPU time of its thread,
which varies less than wall time on a shared machine.
"""

import asyncio
import gc
import math
import os
import random
import statistics
import time
from functools import cache
from typing import ClassVar

from harness import run, sized

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.messages import Message
from envkit.rollout import GenerateRequest, RolloutConfig, ScriptedEngine, collect
from envkit.tasks import Task
from envkit.tokens import ChatCodec, load_codec
from envkit_transformers import builtin_model_dir

ANSWER = "The search found nothing new, so try another door of the long corridor. " * 3


class Instant(Env):
    """Answers immediately; ten turns."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)

    def __init__(self) -> None:
        super().__init__(max_turns=10)

    def on_reset(self, task: Task) -> Turn:
        """Say where it starts."""
        return Turn("You stand in a corridor.")

    def on_turn(self, response_text: str) -> Turn:
        """Say something of constant length."""
        return Turn(ANSWER, reward=0.1)


class Waiting(AsyncEnv):
    """Takes a log-normal time for each of its turns."""

    def __init__(self, waits: "Waits") -> None:
        super().__init__(max_turns=8)
        self._waits = waits

    async def on_areset(self, task: Task) -> Turn:
        """Start immediately; the task sets the number of turns."""
        return Turn("You stand in a corridor.")

    async def on_aturn(self, response_text: str) -> Turn:
        """Wait and answer."""
        number = int(self.task["number"])
        await asyncio.sleep(self._waits.env[number][self.turn])
        return Turn("Go on.", done=self.turn + 1 >= len(self._waits.env[number]))


class Waits:
    """The waiting times of every episode, drawn in advance."""

    def __init__(self, episodes: int, mean_s: float, sigma: float, seed: int = 0) -> None:
        rng = random.Random(seed)
        mu = math.log(mean_s) - sigma**2 / 2

        def draw(turns: int, share: float) -> list[float]:
            return [share * rng.lognormvariate(mu, sigma) for _ in range(turns)]

        turns = [rng.randint(1, 5) for _ in range(episodes)]
        self.engine = [draw(n, 1.0) for n in turns]
        self.env = [draw(n, 0.25) for n in turns]

    def of_reply(self, request: GenerateRequest) -> float:
        """Return the engine's time for a reply, in seconds."""
        assert request.context is not None
        return self.engine[int(request.context.task["number"])][request.context.turn]

    def ideal(self) -> float:
        """Return the longest episode's own waiting, in seconds."""
        return max(sum(a) + sum(b) for a, b in zip(self.engine, self.env, strict=True))


@cache
def drawn_waits(episodes: int, mean_s: float, sigma: float) -> Waits:
    """Return the waiting times, equal in all processes and cached per process."""
    return Waits(episodes, mean_s, sigma)


def reply(context: PolicyContext) -> str:
    """Write a reply of constant length."""
    return f"I open door {context.turn} and look for the key after it."


async def overhead(codec: ChatCodec, episodes: int, config: RolloutConfig) -> float:
    """Return microseconds of CPU time per turn."""
    engine, turns = ScriptedEngine(codec, reply), 0
    started = time.process_time()
    async for trajectory in collect(
        Instant, engine, codec, episodes=episodes, concurrency=32, config=config
    ):
        turns += len(trajectory.turns)
    return (time.process_time() - started) / turns * 1e6


def turn_cost(codec: ChatCodec, episodes: int) -> dict[str, float]:
    """Return CPU microseconds per turn: total, codec, loop and self-check, and a ratio.

    The ratio is that of the loop and the self-check to the codec. Goal: at most 1.4.

    The loop's figure is without the self-check. The self-check's figure comes from runs of three
    times the episodes, of which it compares the first ones in full.
    """
    plain, checking = RolloutConfig(sanity="off"), RolloutConfig()
    asyncio.run(overhead(codec, 20, plain))  # warm up
    runs = [asyncio.run(overhead(codec, episodes, plain)) for _ in range(5)]
    share = codec_share(codec)
    pairs = [
        asyncio.run(overhead(codec, 3 * episodes, checking))
        - asyncio.run(overhead(codec, 3 * episodes, plain))
        for _ in range(3)
    ]
    own, check = statistics.median(runs) - share, statistics.median(pairs)
    return {
        "turn_us": statistics.median(runs),
        "turn_us_best": min(runs),
        "codec_us": share,
        "overhead_us": own,
        "self_check_us": check,
        "own_over_codec": (own + check) / share,
    }


def codec_share(codec: ChatCodec, times: int = 2000) -> float:
    """Return microseconds that the codec alone takes for one turn's texts."""
    message: Message = {"role": "user", "content": ANSWER}
    text = "I open door 5 and look for the key after it."
    sampled = codec.encode_reply(text)
    started = time.process_time()
    for _ in range(times):
        codec.encode_reply(text)
        codec.decode(sampled)
        codec.encode_observation([message], sampled_ids=sampled)
    return (time.process_time() - started) / times * 1e6


class Collections:
    """Times the garbage collections between the first request and the last result."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._started = 0.0

    def begin(self) -> None:
        """Start, once."""
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)

    def end(self) -> None:
        """Stop."""
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._started = time.thread_time()
        else:
            self.longest_ms = max(self.longest_ms, 1e3 * (time.thread_time() - self._started))


async def makespan(codec: ChatCodec, episodes: int, mean_s: float) -> dict[str, float]:
    """Return ideal and measured seconds of all concurrent episodes, and the longest collection."""
    waits, collections, left = Waits(episodes, mean_s, sigma=0.8), Collections(), episodes

    def latency(request: GenerateRequest) -> float:
        collections.begin()
        return waits.of_reply(request)

    engine = ScriptedEngine(codec, reply, latency=latency)
    started = time.perf_counter()
    async for trajectory in collect(
        lambda: Waiting(waits),
        engine,
        codec,
        episodes=episodes,
        concurrency=episodes,
        tasks=[{"number": number} for number in range(episodes)],
    ):
        assert trajectory.fault is None, trajectory.fault
        left -= 1
        if not left:
            collections.end()
    measured = time.perf_counter() - started
    ideal = waits.ideal()
    return {
        "ideal_s": ideal,
        "measured_s": measured,
        "ratio": measured / ideal,
        "longest_collection_ms": collections.longest_ms,
    }


def measure(model: str | None, instant: int, episodes: int, mean_s: float) -> dict[str, float]:
    """Return all figures on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    codec = load_codec(model or builtin_model_dir("builtin-text"))
    costs = turn_cost(codec, instant)
    return {**costs, "episodes": episodes, **asyncio.run(makespan(codec, episodes, mean_s))}


if __name__ == "__main__":
    run(
        measure,
        model={"help": "folder of a tokenizer (default: the built-in model)"},
        instant=sized(300, 4, "episodes of a run that measures the CPU time of a turn"),
        episodes=sized(4096, 4, "concurrent episodes, for the makespan"),
        mean_s=sized(4.0, 0.01, "mean seconds of a reply"),
    )
