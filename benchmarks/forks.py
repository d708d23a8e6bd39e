"""What a fork holds in memory beside its trunk: its own turns, and no copy of tokens or images.

A scripted policy plays a trunk of ten turns, each with an image and thousands of tokens. Then every
fork goes back to before the last turn and plays it again. All trajectories are kept. Memory is what
Python and NumPy have allocated (tracemalloc). The codec's cache of processor outputs is filled
beforehand: it belongs to the codec, not to a trajectory.
"""

import gc
import tracemalloc
from typing import Any, ClassVar, Final

import numpy as np
from harness import run, sized

from envkit import rollout
from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.images import Image
from envkit.tasks import Task
from envkit.tokens import load_codec
from envkit.trajectory import Trajectory, fork_before
from envkit_transformers import builtin_model_dir

TURNS: Final = 10
COLUMNS: Final = ("wire_ids", "train_ids", "loss_mask", "logprobs")


class Pages(Env):
    """Shows a page of text and an image before every reply."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, snapshot=True)

    def __init__(self, words: int) -> None:
        super().__init__(max_turns=TURNS)
        self._words = words

    def on_reset(self, task: Task) -> Turn:
        """Show the first page."""
        return self._page(0)

    def on_turn(self, response_text: str) -> Turn:
        """Show the next page."""
        number = self.turn + 1
        return self._page(number) if number < TURNS else Turn("Done.", reward=0.1, done=True)

    def get_state(self) -> dict[str, Any]:
        """Return nothing: the turn says it all."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take nothing back."""

    def _page(self, number: int) -> Turn:
        noise = np.random.default_rng(number).integers(0, 256, (224, 336, 3), np.uint8)
        return Turn("x " * self._words, images=(Image.from_array(noise),), reward=0.1)


def reply(context: PolicyContext) -> str:
    """Say something that differs between forks."""
    return f"Reply {context.turn} {context.seed}."


def own_bytes(leaf: Trajectory) -> int:
    """Return how large the token columns of the leaf's own segments are."""
    return sum(one.array(name).nbytes for one in leaf.own_segments for name in COLUMNS)


async def measure(tokens: int, forks: int) -> dict[str, float]:
    """Return the memory of a trunk and of each of its forks."""
    codec = load_codec(builtin_model_dir())
    words = tokens // TURNS // 2
    config = rollout.RolloutConfig(sanity="off", limits=rollout.Limits(max_response_tokens=None))
    player = rollout.Player(rollout.ScriptedEngine(codec, reply), codec, config)
    spec = rollout.EpisodeSpec(seed=7)
    try:
        await player.play(Pages(10), spec)  # whatever is made once
        tracemalloc.start()
        (trunk,) = await player.play(Pages(words), spec)
        gc.collect()
        trunk_bytes, _ = tracemalloc.get_traced_memory()
        cut = [fork_before(trunk, TURNS - 1, episode_id=str(number)) for number in range(forks)]
        gc.collect()
        cut_bytes = tracemalloc.get_traced_memory()[0] - trunk_bytes
        del cut, trunk
        leaves = await rollout.play_tree(
            Pages(words),
            player,
            branching=rollout.AtTurns(turns=(TURNS - 1,), width=forks + 1),
            spec=spec,
        )
        gc.collect()
        tree_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await player.aclose()
    trunk, *others = leaves
    assert len(others) == forks
    assert all(leaf.fault is None and leaf.origin is not None for leaf in others)
    return {
        "trunk_tokens": sum(one.token_count for one in trunk.segments),
        "trunk_images": sum(len(one.images) for one in trunk.segments),
        "trunk_mb": trunk_bytes / 1e6,
        "forks": forks,
        "unplayed_fork_kb": cut_bytes / forks / 1e3,
        "fork_kb": (tree_bytes - trunk_bytes) / forks / 1e3,
        "own_columns_kb": sum(map(own_bytes, others)) / forks / 1e3,
        "tree_over_trunk": tree_bytes / trunk_bytes,
        "peak_over_trunk": peak_bytes / trunk_bytes,
    }


if __name__ == "__main__":
    run(
        measure,
        tokens=sized(100_000, 2_000, "approximate tokens of the trunk"),
        forks=sized(64, 2),
    )
