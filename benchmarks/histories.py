"""What a history policy costs and saves in long episodes with a screenshot in every turn.

Desktop: a script waits, so that an episode of the simulated desktop lasts 40 turns. Append-only is
compared with KeepLastImages(keep=3, drop_at=6) and with functions that keep exactly three or six
images, for which they rewrite at every turn. No model runs.

Canary: the built-in model reads a code of four characters in each of 40 turns. It was trained on
episodes of three turns. Append-only is compared with KeepLastImages(keep=3, drop_at=6) and with a
function that shows the system prompt and at most three turns, as in training.

CPU time is that of the whole process. Encoded tokens are prompts and observations: what the loop
renders and an engine with a prefix cache has to read.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from harness import run, sized

import envkit
from envkit import rollout
from envkit.env import PolicyContext
from envkit.messages import Message, images_of, message, text_of
from envkit.tokens import ChatCodec, load_codec
from envkit.trajectory import SegmentKind, Trajectory
from envkit_actions.action import Action, ActionKind
from envkit_transformers import builtin_model_dir
from envkit_transformers.loading import create_engine

DESKTOP: Final[Mapping[str, str | Mapping[str, Any]]] = {
    "append": "keep",
    "keep_3_drop_at_6": {"keep_last_images": {"keep": 3, "drop_at": 6}},
    "exactly_3": f"{__name__}:three_every_turn",
    "exactly_6": f"{__name__}:six_every_turn",
}
CANARY: Final[Mapping[str, str | Mapping[str, Any]]] = {
    "append": "keep",
    "keep_3_drop_at_6": {"keep_last_images": {"keep": 3, "drop_at": 6}},
    "three_turns": f"{__name__}:three_turns",
}


def three_every_turn(view: rollout.HistoryView) -> Sequence[Message] | None:
    """Keep the last three images."""
    return keep_exactly(view, 3)


def six_every_turn(view: rollout.HistoryView) -> Sequence[Message] | None:
    """Keep the last six images."""
    return keep_exactly(view, 6)


def keep_exactly(view: rollout.HistoryView, count: int) -> Sequence[Message] | None:
    """Replace all but the last images by a short text."""
    left = len(images_of(view.messages)) - count
    if left <= 0:
        return None
    rewritten: list[Message] = []
    for entry in view.messages:
        images = images_of([entry])
        dropped = min(left, len(images))
        left -= dropped
        text = "[image omitted]\n" * dropped + text_of(entry)
        rewritten.append(message(entry["role"], text, images[dropped:]) if dropped else entry)
    return rewritten


def three_turns(view: rollout.HistoryView) -> Sequence[Message] | None:
    """Show the system prompt and the last three turns."""
    replies = [n for n, entry in enumerate(view.messages) if entry["role"] == "assistant"]
    return None if len(replies) < 3 else [view.messages[0], *view.messages[replies[-2] - 1 :]]


class Watching(rollout.ScriptedEngine):
    """Notes how much each request shows the model."""

    def __init__(self, codec: ChatCodec) -> None:
        super().__init__(codec, wait)
        self.images: list[int] = []

    async def generate(self, request: rollout.GenerateRequest) -> rollout.Generation:
        """Note the images and reply."""
        self.images.append(len(request.images))
        return await super().generate(request)


def wait(context: PolicyContext) -> str:
    """Wait; the screen stays and the task continues."""
    env: Any = context.env.unwrapped
    return env.dialect.write([Action(kind=ActionKind.WAIT)])


Make = Callable[[], Any]


async def play(
    make: Make,
    engine: rollout.Engine,
    codec: ChatCodec,
    history: str | Mapping[str, Any],
    turns: int,
    episodes: int,
) -> dict[str, float]:
    """Return the figures of one policy."""
    limits = rollout.Limits(max_turns=turns, max_response_tokens=None, max_context_tokens=None)
    config = rollout.RolloutConfig(
        history=history,
        limits=limits,
        sampling={"max_new_tokens": 512, "seed": 0},
        sanity="off",
        seed=3,
    )
    counts, rewards, peak = Counter[str](), list[float](), 0
    started = time.process_time()
    async for one in rollout.collect(
        make, engine, codec, episodes=episodes, concurrency=1, config=config
    ):
        assert one.fault is None, one.fault
        assert len(one.turns) == turns, f"{len(one.turns)} turns, {one.stop_reason}"
        peak = max(peak, *(turn.prompt_tokens for turn in one.turns))
        rewards.append(one.reward or 0.0)
        counts.update(counted(one))
    seconds = time.process_time() - started
    return {
        **counts,
        "rewrites_per_turn_with_images": counts["rewrites"] / counts["turns_with_images"],
        "peak_context_tokens": peak,
        "reward": statistics.fmean(rewards),
        "cpu_ms_per_turn": seconds / counts["turns"] * 1e3,
    }


def counted(one: Trajectory) -> Counter[str]:
    """Count the turns, rewrites and tokens of an episode."""
    rows = one.steps(merge=True)
    assert sum(sum(row.loss_mask) for row in rows) == one.sampled_token_count
    counts = Counter(turns=len(one.turns), sampled_tokens=one.sampled_token_count)
    counts["turns_with_images"] = 1 + sum(turn.image_count > 0 for turn in one.turns)
    counts["rewrites"] = len(one.branches)
    counts["encoded_tokens"] = sum(
        segment.token_count for segment in one.segments if segment.kind is not SegmentKind.MODEL
    )
    counts["row_tokens"] = sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    return counts


async def desktop(turns: int, episodes: int) -> dict[str, Any]:
    """Wait on a desktop with every policy; return the figures by policy."""
    found = dict[str, Any]()
    for name, history in [("warm-up", "keep"), *DESKTOP.items()]:
        codec = load_codec(builtin_model_dir(), lazy_features=True)
        engine = Watching(codec)
        found[name] = await play(
            lambda: envkit.make("computer-use-v0", max_turns=turns),
            engine,
            codec,
            history,
            turns,
            episodes,
        )
        found[name]["peak_images"] = max(engine.images)
    del found["warm-up"]
    for count in (3, 6):
        tokens = found[f"exactly_{count}"]["row_tokens"]
        for one in found.values():
            one[f"row_tokens_over_exactly_{count}"] = one["row_tokens"] / tokens
    return found


async def canary(turns: int, episodes: int) -> dict[str, Any]:
    """Have the built-in model read a code in every turn; return the figures by policy."""
    found = dict[str, Any]()
    for name, history in [("warm-up", "keep"), *CANARY.items()]:
        engine = create_engine()
        codec = ChatCodec(engine.processor)
        found[name] = await play(
            lambda: envkit.make("canary-v0", turns=turns), engine, codec, history, turns, episodes
        )
        await engine.aclose()
    del found["warm-up"]
    return found


async def measure(turns: int, episodes: int) -> dict[str, Any]:
    """Return the figures of both environments."""
    return {"desktop": await desktop(turns, episodes), "canary": await canary(turns, episodes)}


if __name__ == "__main__":
    run(measure, turns=sized(40, 4), episodes=sized(4, 1))
