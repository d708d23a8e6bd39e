"""Adapters with planted defects: each is a good projection whose rows are spoilt in one way."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envkit.images import Image
from envkit.trajectory import Trajectory
from envkit_conformance import DeliveredRow, Projection, Shape, expected_rows

Rows = list[DeliveredRow]
Array = NDArray[Any]
Spoil = Callable[[Rows], Rows]
Change = Callable[[DeliveredRow], DeliveredRow]


def projection(
    shape: Shape, spoil: Spoil = lambda rows: rows, *, with_images: bool = False
) -> Projection:
    """Return the core's rows, with something done to them."""

    def deliver(trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
        rows = expected_rows(trajectory, shape, filler_id=filler_id)
        return spoil([DeliveredRow.of(row, with_images=with_images) for row in rows])

    return Projection(name="planted", shape=shape, deliver=deliver)


def on_row(number: int, spoil: Change) -> Spoil:
    """Spoil one row; negative numbers count from the end."""

    def spoilt(rows: Rows) -> Rows:
        rows[number] = spoil(rows[number])
        return rows

    return spoilt


def shift_mask(by: int) -> Change:
    return lambda row: replace(row, loss_mask=np.roll(row.loss_mask, by).tolist())


def drop_token(place: int) -> Change:
    """Drop one response token with its mask and log-probability: the columns still line up."""

    def drop(row: DeliveredRow) -> DeliveredRow:
        def without(column: Sequence[float] | Sequence[int]) -> list[float]:
            return [value for n, value in enumerate(column) if n != place]

        return replace(
            row,
            response_ids=[int(value) for value in without(row.response_ids)],
            loss_mask=[int(value) for value in without(row.loss_mask)],
            logprobs=without(row.logprobs or ()),
        )

    return drop


def add_observation(row: DeliveredRow) -> DeliveredRow:
    """Leave the environment's last words after the last reply."""
    assert row.logprobs is not None
    return replace(
        row,
        response_ids=[*row.response_ids, 198, 151644, 872],
        loss_mask=[*row.loss_mask, 0, 0, 0],
        logprobs=[*row.logprobs, 0.0, 0.0, 0.0],
    )


def lose_logprob(place: int) -> Change:
    def lose(row: DeliveredRow) -> DeliveredRow:
        assert row.logprobs is not None
        values = list(row.logprobs)
        values[place] = 0.0
        return replace(row, logprobs=values)

    return lose


def swap_images(row: DeliveredRow) -> DeliveredRow:
    """Exchange the first and the last image, of one size, in the tensors."""
    return _with_parts(row, lambda parts: [parts[-1], *parts[1:-1], parts[0]])


def drop_image(row: DeliveredRow) -> DeliveredRow:
    return _with_parts(row, lambda parts: parts[:-1])


def swap_pictures(row: DeliveredRow) -> DeliveredRow:
    assert row.images is not None
    first, *between, last = row.images
    return replace(row, images=[last, *between, first])


def drop_picture(row: DeliveredRow) -> DeliveredRow:
    assert row.images is not None
    return replace(row, images=row.images[:-1])


def without_images(row: DeliveredRow) -> DeliveredRow:
    return replace(row, images=None, tensors={})


def _with_parts(row: DeliveredRow, change: Callable[[list[Array]], list[Array]]) -> DeliveredRow:
    """Return the row with its tensors split by image, rearranged and joined again."""
    ends = np.cumsum(row.tensors["image_grid_thw"].prod(axis=1))[:-1]
    split = {
        "pixel_values": np.split(row.tensors["pixel_values"], ends),
        "image_grid_thw": list(row.tensors["image_grid_thw"][:, None]),
    }
    return replace(row, tensors={k: np.concatenate(change(v)) for k, v in split.items()})


def other_image(row: DeliveredRow) -> DeliveredRow:
    assert row.images is not None
    strange = Image.from_array(np.zeros((8, 8, 3), np.uint8))
    return replace(row, images=[*row.images[:-1], strange])
