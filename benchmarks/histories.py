"""What a history policy costs and saves in long episodes with a screenshot in every turn.

A script waits, so an episode of the simulated desktop lasts 40 turns. Append-only is compared
with KeepLastImages(keep=3, drop_at=6) and with functions that keep exactly three or six images, for
which they rewrite at every turn. Seconds are CPU time of the whole process per turn; no model runs.

    python benchmarks/histories.py [--turns 40] [--episodes 2] [--json FILE]
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import envkit
from envkit.env import PolicyContext
from envkit.messages import Message, images_of, message, text_of
from envkit.rollout import (
    GenerateRequest,
    Generation,
    HistoryView,
    Limits,
    RolloutConfig,
    ScriptedEngine,
    collect,
)
from envkit.tokens import ChatCodec, load_codec
from envkit_actions.action import Action, ActionKind
from envkit_transformers import builtin_model_dir

HISTORIES: Final[Mapping[str, Any]] = {
    "append only": "keep",
    "keep 3, drop at 6": {"keep_last_images": {"keep": 3, "drop_at": 6}},
    "3 images, rewritten every turn": f"{__name__}:three_every_turn",
    "6 images, rewritten every turn": f"{__name__}:six_every_turn",
}


def three_every_turn(view: HistoryView) -> Sequence[Message] | None:
    """Keep the last three images."""
    return keep_exactly(view, 3)


def six_every_turn(view: HistoryView) -> Sequence[Message] | None:
    """Keep the last six images."""
    return keep_exactly(view, 6)


def keep_exactly(view: HistoryView, count: int) -> Sequence[Message] | None:
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


class Watching(ScriptedEngine):
    """Notes how much each request shows the model."""

    def __init__(self, codec: ChatCodec) -> None:
        super().__init__(codec, wait)
        self.images: list[int] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        """Note the images and reply."""
        self.images.append(len(request.images))
        return await super().generate(request)


def wait(context: PolicyContext) -> str:
    """Wait; the screen does not change and the task continues."""
    env: Any = context.env.unwrapped
    return env.dialect.write([Action(kind=ActionKind.WAIT)])


async def measure(codec: ChatCodec, history: Any, turns: int, episodes: int) -> dict[str, float]:  # noqa: ANN401
    """Return the figures of one policy."""
    engine = Watching(codec)
    limits = Limits(max_turns=turns, max_response_tokens=None, max_context_tokens=None)
    config = RolloutConfig(history=history, limits=limits, sanity="off", seed=3)
    played, rewrites, with_images, tokens, peak = 0, 0, 0, 0, 0
    started = time.process_time()
    async for one in collect(
        lambda: envkit.make("computer-use-v0", max_turns=turns),
        engine,
        codec,
        episodes=episodes,
        concurrency=1,
        config=config,
    ):
        assert one.fault is None, one.fault
        assert len(one.turns) == turns, f"{len(one.turns)} turns, {one.stop_reason}"
        played += len(one.turns)
        rewrites += len(one.branches)
        with_images += 1 + sum(turn.image_count > 0 for turn in one.turns)
        peak = max(peak, *(turn.prompt_tokens for turn in one.turns))
        rows = one.steps(merge=True)
        assert sum(sum(row.loss_mask) for row in rows) == one.sampled_token_count
        tokens += sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    return {
        "turns": played,
        "turns_with_images": with_images,
        "rewrites": rewrites,
        "rewrites_per_turn_with_images": round(rewrites / with_images, 3),
        "peak_images": max(engine.images),
        "peak_context_tokens": peak,
        "row_tokens": tokens,
        "cpu_seconds_per_turn": round((time.process_time() - started) / played, 4),
    }


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    codec = load_codec(builtin_model_dir(), lazy_features=True)
    figures = {
        name: asyncio.run(measure(codec, history, options.turns, options.episodes))
        for name, history in HISTORIES.items()
    }
    every = {n: figures[f"{n} images, rewritten every turn"]["row_tokens"] for n in (3, 6)}
    for name, one in figures.items():
        for count, tokens in every.items():
            one[f"row_tokens_relative_to_{count}_images"] = round(one["row_tokens"] / tokens, 3)
        sys.stdout.write(f"{name}: {json.dumps(one)}\n")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
