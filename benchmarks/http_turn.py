"""Measure the client's CPU time per turn over HTTP, as the conversation grows.

Episodes of an instant text environment are played against `reliability_server.py` in another
process, which answers at once. A conversation begins with 8,000 tokens, or with a few. The codec's
own time for the texts of a turn is measured too, as in `benchmarks/loop.py`. There is no
self-check.
"""

import asyncio
import time
from typing import ClassVar

from harness import run, sized
from loop import ANSWER, codec_share
from reliability_load import server

from envkit.env import Capabilities, Env, Turn
from envkit.rollout import RolloutConfig, collect
from envkit.tasks import Task
from envkit.tokens import ChatCodec, load_codec
from envkit_sglang import SGLangEngine
from envkit_transformers import builtin_model_dir


class Corridor(Env):
    """Begins with a text of a given length and adds a short one per turn."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)

    def __init__(self, *, opening: int, max_turns: int) -> None:
        super().__init__(max_turns=max_turns)
        self._opening = opening

    def on_reset(self, task: Task) -> Turn:
        """Say where it starts."""
        return Turn("You stand in a corridor. " + "door " * self._opening)

    def on_turn(self, response_text: str) -> Turn:
        """Say something of constant length."""
        return Turn(ANSWER)


async def played(
    codec: ChatCodec, url: str, opening: int, turns: int, episodes: int
) -> tuple[float, int]:
    """Return CPU milliseconds per turn, and the tokens at the end of an episode."""
    engine = SGLangEngine(url, compare_prompts=0, check_logprobs=False)
    config = RolloutConfig(sanity="off")
    count, tokens = 0, 0
    started = time.process_time()
    async for trajectory in collect(
        lambda: Corridor(opening=opening, max_turns=turns),
        engine,
        codec,
        episodes=episodes,
        concurrency=4,
        config=config,
    ):
        assert trajectory.fault is None, trajectory.fault
        count += len(trajectory.turns)
        tokens = len(trajectory.train_ids())
    spent = time.process_time() - started
    await engine.aclose()
    return spent / count * 1e3, tokens


def measure(opening: int, turns: int, episodes: int) -> dict[str, float]:
    """Return milliseconds of CPU time per turn of long and of short conversations."""
    codec = load_codec(builtin_model_dir())
    with server(0.0) as url:
        asyncio.run(played(codec, url, 1, turns, 1))  # warm up
        short = min(asyncio.run(played(codec, url, 1, turns, episodes)) for _ in range(3))
        long = min(asyncio.run(played(codec, url, opening, turns, episodes)) for _ in range(3))
    return {
        "tokens_of_long": long[1],
        "turn_ms_of_long": long[0],
        "turn_ms_of_short": short[0],
        "codec_us": codec_share(codec),
    }


if __name__ == "__main__":
    run(
        measure,
        opening=sized(1300, 50, "words of a long conversation's first text"),
        turns=sized(40, 3),
        episodes=sized(4, 1),
    )
