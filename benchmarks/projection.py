"""Measure the cost of passing one long trajectory to a trainer.

A trajectory of 20 turns, 16,200 tokens and 20 images goes through the core's projections and
through every installed adapter that can be imported here, up to the trainer's own object. The time
for joining image tensors is subtracted, because it depends only on the images. Goal: at most 2 ms.

An adapter needs its trainer, so use the interpreter of its contract environment.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np
from harness import best_ms, run, sized
from storing import text_segment, trajectory_of

from envkit.errors import MissingDependencyError
from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures, join_features
from envkit.trajectory import Segment, SegmentKind, Trajectory, step_rows, whole_row
from envkit_conformance import Content, load_adapters

GOAL_MS: Final = 2.0
TURNS: Final = 20
PLACEHOLDER: Final = 151_655


def long_trajectory() -> Trajectory:
    """Return 20 turns: a prompt of 800 tokens, replies of 200, observations of 600."""
    rng = np.random.default_rng(0)
    segments = [_context(rng, SegmentKind.PROMPT, 0, 800)]
    for turn in range(TURNS):
        reply = text_segment(rng, SegmentKind.MODEL, turn, 200)
        segments.append(replace(reply, weight_version="1"))
        if turn + 1 < TURNS:
            segments.append(_context(rng, SegmentKind.OBSERVATION, turn + 1, 600))
    return trajectory_of(segments)


def _context(rng: np.random.Generator, kind: SegmentKind, turn: int, count: int) -> Segment:
    pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    features = ImageFeatures(
        tensors={
            "pixel_values": rng.random((256, 1176), dtype=np.float32),
            "image_grid_thw": np.array([[1, 16, 16]]),
        },
        token_count=64,
    )
    text = tuple(int(token) for token in rng.integers(0, 150_000, count - 64))
    return Segment(
        kind=kind,
        turn=turn,
        wire_ids=(PLACEHOLDER, *text),
        train_ids=((PLACEHOLDER,) * 64 + text),
        loss_mask=(0,) * count,
        logprobs=(0.0,) * count,
        images=(Image.from_array(pixels),),
        features=(features,),
    )


def measure(rounds: int) -> dict[str, Any]:
    """Return milliseconds by projection, without joining image tensors.

    A projection whose trainer is not installed is named and left out.
    """
    trajectory = long_trajectory()
    rows = step_rows(trajectory, filler_id=0)
    joining = {
        False: best_ms(trajectory.tensors, rounds),
        True: best_ms(lambda: [join_features(row.features) for row in rows], rounds),
    }
    figures = {
        "whole_row": best_ms(lambda: whole_row(trajectory, filler_id=0), 5 * rounds),
        "step_rows": best_ms(lambda: step_rows(trajectory, filler_id=0), 5 * rounds),
    }
    for adapter in load_adapters():
        if adapter.name == "core":
            continue
        for projection in adapter.members:
            if Content.IMAGES in projection.cannot_carry:
                continue
            deliver = projection.deliver

            def call(deliver: Any = deliver) -> object:  # noqa: ANN401  # a foreign function
                return deliver(trajectory, filler_id=0)

            many = projection.shape.value == "steps"
            try:
                taken = best_ms(call, rounds)
            except MissingDependencyError as error:
                print(f"{projection.name:>24}: left out: {error}")
                break  # the adapter's others need the same trainer
            figures[projection.name] = max(0.0, taken - joining[many])
    return {"goal_ms": GOAL_MS, "ms": figures}


if __name__ == "__main__":
    run(
        measure,
        rounds=sized(20, 1, "repetitions; the fastest counts"),
    )
