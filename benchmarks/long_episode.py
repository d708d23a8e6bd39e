"""Measure how a turn's CPU time grows over one long episode, with and without the self-check.

An instant text environment and scripted replies fill 300,000 tokens in 380 turns. The figures are
mean CPU milliseconds per turn in each quarter of the episode, and the last over the first quarter.
Goal: at most 2 with the default check, and at most 2 without it.

    python benchmarks/long_episode.py [--turns 24] [--json FILE]
"""

import asyncio
import time
from itertools import pairwise
from typing import Any, ClassVar, Final

from harness import run, sized

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.metrics import aggregate
from envkit.rollout import RolloutConfig, ScriptedEngine, collect
from envkit.tasks import Task
from envkit.tokens import ChatCodec, load_codec
from envkit_transformers import builtin_model_dir

QUARTERS: Final = 4
_WORDS: Final = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
_REPLY: Final = "I looked at it; go on, please. " * 8


class Clocked(Env):
    """Sends long texts, and notes the process's CPU time at every reply."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)

    def __init__(self, *, turns: int, words: int) -> None:
        super().__init__(max_turns=turns)
        self._words = words
        self.clock: list[float] = []

    def on_reset(self, task: Task) -> Turn:
        """Send the first text."""
        self.clock.clear()
        return Turn(self._text(0))

    def on_turn(self, response_text: str) -> Turn:
        """Note the time and send the next text."""
        self.clock.append(time.process_time())
        return Turn(self._text(self.turn + 1))

    def _text(self, number: int) -> str:
        return " ".join(_WORDS[(number + at * at) % len(_WORDS)] for at in range(self._words))


def say(_: PolicyContext) -> str:
    """Write a reply of constant length."""
    return _REPLY


async def played(codec: ChatCodec, config: RolloutConfig, turns: int, words: int) -> dict[str, Any]:
    """Return the figures of one episode."""
    env, engine = Clocked(turns=turns, words=words), ScriptedEngine(codec, say)
    (one,) = [one async for one in collect(lambda: env, engine, codec, episodes=1, config=config)]
    assert one.fault is None, one.fault
    places = [round(n * (turns - 1) / QUARTERS) for n in range(QUARTERS + 1)]
    quarters = [
        1e3 * (env.clock[end] - env.clock[start]) / (end - start) for start, end in pairwise(places)
    ]
    metrics = aggregate([one])
    return {
        "tokens": one.token_count,
        "quarters_ms": [round(each, 2) for each in quarters],
        "last_over_first": quarters[-1] / quarters[0],
        "long_observations": int(metrics.get("sanity/long/observations", 0)),
        "long_checked": int(metrics.get("sanity/long/checked", 0)),
    }


def measure(model: str | None, turns: int, words: int) -> dict[str, Any]:
    """Return the figures of an episode without the self-check, and of one with its defaults."""
    codec = load_codec(model or builtin_model_dir("builtin-text"))
    configs = {"plain": RolloutConfig(sanity="off"), "checked": RolloutConfig()}
    asyncio.run(played(codec, configs["checked"], 8, 8))  # warm up
    found = {name: asyncio.run(played(codec, one, turns, words)) for name, one in configs.items()}
    return {f"{name}_{key}": value for name, row in found.items() for key, value in row.items()}


if __name__ == "__main__":
    run(
        measure,
        model={"help": "folder of a tokenizer (default: the built-in model)"},
        turns=sized(380, 24, "turns of the episode, at least 5"),
        words=sized(450, 30, "words of each observation"),
    )
