"""What a segment stores: less than tuples of numbers, and exactly the same values."""

import math
import pickle
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.boundaries import at_limit
from fakes.trajectories import example, quick
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import LedgerFault
from envkit.trajectory import Segment, SegmentKind
from envkit.trajectory.segment import column_of

IDS = st.integers(0, 2**63 - 1) | st.integers(0, 200_000) | at_limit(2**31)
LOGPROBS = st.floats(max_value=0.0) | st.floats(max_value=0.0, width=32)


def reply(ids: list[int], logprobs: list[float], mask: list[int] | None = None) -> Segment:
    return Segment(
        kind=SegmentKind.MODEL,
        turn=0,
        wire_ids=ids,
        train_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
    )


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], list[float], list[int]]:
    ids = draw(st.lists(IDS, max_size=8))
    count = len(ids)
    logprobs = draw(st.lists(LOGPROBS, min_size=count, max_size=count))
    return ids, logprobs, draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))


@quick
@given(rows())
def test_segment_reads_back_exactly_what_was_recorded(
    row: tuple[list[int], list[float], list[int]],
) -> None:
    ids, logprobs, mask = row
    segment = reply(ids, logprobs, mask)
    for one in (segment, pickle.loads(pickle.dumps(segment)), replace(segment, reward=1.0)):
        assert one.wire_ids == one.train_ids == tuple(ids)
        assert one.loss_mask == tuple(mask)
        assert [value.hex() for value in one.logprobs] == [value.hex() for value in logprobs]
        assert all(type(value) is int for value in (*one.train_ids, *one.loss_mask))
        assert all(type(value) is float for value in one.logprobs)
    assert column_of((segment, segment), "logprobs") == (*segment.logprobs, *segment.logprobs)
    if not any(map(math.isnan, logprobs)):
        assert segment == pickle.loads(pickle.dumps(segment))
        assert hash(segment) == hash(reply(ids, logprobs, mask))


def test_segments_of_other_values_differ() -> None:
    one = reply([1, 2], [-0.5, -0.25])
    assert one != reply([1, 3], [-0.5, -0.25])
    assert one != reply([1, 2], [-0.5, -0.25 - 1e-12])
    assert one != reply([1, 2], [-0.5, -0.25], [0, 1])
    assert one == reply([1, 2], [-0.5, -0.25], [1, 1])


@pytest.mark.parametrize("width", [32, 64])
def test_segment_takes_at_most_16_bytes_per_token(width: int) -> None:
    count = 4096
    third = -1 / 3 if width == 64 else float(np.float32(-1 / 3))
    segment = reply([150_000] * count, [third] * count)
    arrays = {id(one): one for one in vars(segment).values() if isinstance(one, np.ndarray)}
    assert sum(map(sys.getsizeof, arrays.values())) <= count * 16
    assert arrays[id(segment.array("logprobs"))].itemsize * 8 == width
    assert sum(map(sys.getsizeof, arrays.values())) <= count * (4 + width // 8) + 256


def test_arrays_of_a_segment_cannot_be_changed() -> None:
    segment = example().segments[1]
    with pytest.raises(ValueError, match="read-only"):
        segment.array("train_ids")[0] = 7


def test_context_stores_neither_mask_nor_log_probabilities() -> None:
    prompt = replace(example().segments[0], loss_mask=None, logprobs=None)
    assert prompt == example().segments[0]
    assert prompt.loss_mask == (0,) * prompt.token_count
    assert prompt.logprobs == (0.0,) * prompt.token_count
    assert prompt.array("logprobs").tolist() == list(prompt.logprobs)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("train_ids", (1.5, 2)),
        ("train_ids", (10**30, 2)),
        ("wire_ids", ("1", 2)),
        ("wire_ids", (None, 2)),
        ("logprobs", ("none", -1.0)),
        ("logprobs", (None, -1.0)),
    ],
)
def test_segment_refuses_values_of_the_wrong_type(column: str, value: Any) -> None:
    segment = reply([1, 2], [-1.0, -2.0])
    with pytest.raises(LedgerFault, match="must be"):
        replace(segment, **{column: value})
