"""The ledger of a running episode: what it records, counts, refuses and takes back."""

import math
from typing import Any

import numpy as np
import pytest
from fakes.trajectories import picture, quick
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import LedgerFault
from envkit.messages import message
from envkit.tokens.encoded import Encoded, ImageFeatures
from envkit.trajectory import Branch, Ledger, Segment, SegmentKind
from envkit.trajectory.segment import LOGPROB_SLACK
from envkit.trajectory.sequence import TEMPLATE, sequences_of

WIDE = 2**31
"""The first id that needs 64 bits."""


def text(*ids: int) -> Encoded:
    return Encoded(wire_ids=ids, train_ids=ids)


def shown(*numbers: int, expansion: int = 3) -> Encoded:
    """Return images, each a placeholder and the id 6."""
    return Encoded(
        wire_ids=(9, 6) * len(numbers),
        train_ids=(*(9,) * expansion, 6) * len(numbers),
        images=tuple(map(picture, numbers)),
        features=tuple(ImageFeatures(tensors={}, token_count=expansion) for _ in numbers),
    )


def reply(ledger: Ledger, *ids: int, turn: int, logprobs: Any = None, end: str = "stop") -> None:
    ledger.add_reply(
        ids,
        [-1.0] * len(ids) if logprobs is None else logprobs,
        turn=turn,
        finish_reason=end,
        weight_version="1",
        extras={"experts": [1]},
    )


def played() -> Ledger:
    """Return two turns: prompt, reply, observation with images, reply in two parts."""
    ledger = Ledger()
    ledger.start(shown(0), turn=0)
    reply(ledger, 101, 102, turn=0)
    ledger.add_observation(shown(1, 2, expansion=2), turn=1)
    reply(ledger, 103, turn=1, end="abort")
    reply(ledger, 104, 105, turn=1)
    return ledger


def counts(ledger: Ledger) -> tuple[int, int, int]:
    return ledger.train_length, ledger.response_tokens, ledger.sampled_tokens


def state(ledger: Ledger) -> dict[str, Any]:
    assert ledger.wire_length == len(ledger.wire_ids)
    return {
        "segments": list(ledger.segments),
        "branches": list(ledger.branches),
        "images": list(ledger.images),
        "features": list(ledger.features),
        "counts": counts(ledger),
        "wire_ids": tuple(ledger.wire_ids),
    }


def test_ledger_starts_empty() -> None:
    ledger = Ledger()
    empty: list[Any] = []
    assert state(ledger) == {
        "segments": empty,
        "branches": empty,
        "images": empty,
        "features": empty,
        "counts": (0, 0, 0),
        "wire_ids": (),
    }
    assert ledger.reply_ids(0) == ()
    assert ledger.whole_reply(0) is None
    ledger.drop_reply(0)
    assert ledger.finished({}) == ()


def test_ledger_counts_expanded_images_of_the_sequence_and_responses_without_prompts() -> None:
    ledger = Ledger()
    ledger.start(shown(0), turn=0)
    assert counts(ledger) == (4, 0, 0)
    reply(ledger, 101, 102, turn=0)
    assert counts(ledger) == (6, 2, 2)
    ledger.add_observation(shown(1, 2, expansion=2), turn=1)
    assert counts(ledger) == (12, 8, 2)
    assert tuple(ledger.wire_ids) == (9, 6, 101, 102, 9, 6, 9, 6)
    assert ledger.images == [picture(0), picture(1), picture(2)]
    assert [one.token_count for one in ledger.features] == [3, 2, 2]
    ledger.start(shown(1), turn=1)
    assert counts(ledger) == (4, 8, 2)
    assert tuple(ledger.wire_ids) == (9, 6)
    assert ledger.images == [picture(1)]
    assert [one.token_count for one in ledger.features] == [3]


def test_ledger_records_segments_as_they_came() -> None:
    ledger = played()
    first, _, observation, cut, _ = ledger.segments
    assert [one.kind for one in ledger.segments] == [
        "prompt",
        "model",
        "observation",
        "model",
        "model",
    ]
    assert [one.turn for one in ledger.segments] == [0, 0, 1, 1, 1]
    assert (first.wire_ids, first.train_ids) == ((9, 6), (9, 9, 9, 6))
    assert observation.images == (picture(1), picture(2))
    assert observation.features == tuple(ledger.features[1:])
    assert (cut.wire_ids, cut.logprobs, cut.finish_reason) == ((103,), (-1.0,), "abort")
    assert (cut.weight_version, cut.extras) == ("1", {"experts": [1]})


def test_ledger_records_every_later_start_as_a_branch_of_the_sequence_before_it() -> None:
    ledger = played()
    assert ledger.branches == []
    ledger.start(text(1), turn=2)
    reply(ledger, 106, turn=2)
    note = message("user", "summary")
    ledger.start(text(2), turn=3, reason="summarise", message_count=4, history=(0, note))
    assert ledger.branches == [
        Branch(segment=5, parent=0, at=0, reason=TEMPLATE),
        Branch(segment=7, parent=1, reason="summarise", message_count=4, history=(0, note)),
    ]


@pytest.mark.parametrize(("ids", "logprobs"), [((1, 2), (-1.0,)), ((1,), (-1.0, -1.0)), ((1,), ())])
def test_ledger_refuses_a_reply_without_one_log_probability_per_token(
    ids: tuple[int, ...], logprobs: tuple[float, ...]
) -> None:
    ledger = played()
    before = state(ledger)
    with pytest.raises(LedgerFault, match=f"got {len(ids)} ids and {len(logprobs)} log"):
        reply(ledger, *ids, turn=2, logprobs=logprobs)
    assert state(ledger) == before


@pytest.mark.parametrize(
    "bad", [np.nextafter(LOGPROB_SLACK, 1), 1.0, math.inf, -math.inf, math.nan]
)
def test_ledger_refuses_a_log_probability_beyond_the_slack_and_names_it(bad: float) -> None:
    ledger = played()
    before = state(ledger)
    with pytest.raises(LedgerFault, match=f"got {float(bad)!r} in turn 2"):
        reply(ledger, 1, 2, 3, turn=2, logprobs=(-1.0, bad, 5.0))
    assert state(ledger) == before


@pytest.mark.parametrize(
    "value", [LOGPROB_SLACK, np.nextafter(LOGPROB_SLACK, 0), 0.0, -0.0, -1e300]
)
def test_ledger_keeps_a_log_probability_up_to_the_slack(value: float) -> None:
    ledger = Ledger()
    ledger.start(text(1), turn=0)
    reply(ledger, 5, turn=0, logprobs=(value,))
    assert ledger.segments[-1].logprobs == (value,)
    reply(ledger, turn=0)
    assert ledger.segments[-1].token_count == 0


@pytest.mark.parametrize(
    "wrong",
    [
        Encoded(wire_ids=(9, 6), train_ids=(9, 9, 6)),
        Encoded(wire_ids=(9, 6), train_ids=(9, 9, 6), images=(picture(0),)),
        Encoded(wire_ids=(6,), train_ids=(6,), images=(picture(0),)),
        Encoded(
            wire_ids=(6,), train_ids=(6,), features=(ImageFeatures(tensors={}, token_count=1),)
        ),
        *(
            Encoded(
                wire_ids=(9, 6),
                train_ids=(*(9,) * count, 6),
                images=(picture(0),),
                features=(ImageFeatures(tensors={}, token_count=3),),
            )
            for count in (2, 4)
        ),
    ],
)
def test_ledger_refuses_context_whose_images_and_ids_do_not_add_up(wrong: Encoded) -> None:
    ledger = played()
    before = state(ledger)
    for append in (ledger.start, ledger.add_observation):
        with pytest.raises(LedgerFault, match="do not add up in turn 2"):
            append(wrong, turn=2)
        assert state(ledger) == before


def test_reply_of_a_turn_joins_its_parts_and_ends_at_other_segments() -> None:
    ledger = played()
    assert ledger.reply_ids(1) == (103, 104, 105)
    assert ledger.reply_ids(1) is ledger.reply_ids(1)  # joined once
    assert ledger.reply_ids(0) == ()  # not at the end
    assert ledger.whole_reply(1) is ledger.segments[-1]
    assert ledger.whole_reply(0) is None
    reply(ledger, 106, turn=1, end="abort")
    assert ledger.whole_reply(1) is None
    ledger.add_observation(text(7), turn=2)
    assert ledger.reply_ids(2) == ledger.reply_ids(1) == ()
    assert ledger.whole_reply(2) is None
    reply(ledger, 107, turn=2)
    reply(ledger, 108, turn=3)
    assert ledger.reply_ids(3) == (108,)


@pytest.mark.parametrize("reads", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_ids_before_a_reply_are_those_that_its_request_had(reads: tuple[int, ...]) -> None:
    ledger = Ledger()
    ledger.start(text(1, 2), turn=0)
    assert ledger.before_reply(0, 3).tolist() == [1, 2]
    steps = (
        lambda: reply(ledger, 3, 4, turn=0),
        lambda: ledger.add_observation(shown(5), turn=1),
        lambda: reply(ledger, 7, turn=1, end="abort"),
        lambda: reply(ledger, 8, turn=1),
    )
    for number, step in enumerate(steps):
        step()
        if number in reads:
            assert ledger.wire_ids
    assert ledger.before_reply(1, 3).tolist() == [4, 9, 6]
    assert ledger.before_reply(1, 99).tolist() == [1, 2, 3, 4, 9, 6]
    assert ledger.before_reply(0, 2).tolist() == [7, 8]  # its reply is not at the end
    assert ledger.wire_ids.tolist() == [1, 2, 3, 4, 9, 6, 7, 8]


def test_ids_before_a_reply_join_nothing_that_a_request_has_joined() -> None:
    ledger = played()
    ledger.add_observation(text(7), turn=2)
    asked = ledger.wire_ids
    reply(ledger, 106, turn=2)
    assert ledger.before_reply(2, 2).tolist() == asked[-2:].tolist()
    assert ledger._joined == len(ledger.segments) - 1
    replayed, _ = branched()
    assert replayed.before_reply(2, 99).tolist() == [9, 6, 101, 102, 7, 8]


@pytest.mark.parametrize("is_read", [False, True])
def test_dropped_reply_leaves_the_ledger_as_it_was_before_it(is_read: bool) -> None:
    ledger = played()
    before = state(ledger)
    reply(ledger, 106, turn=2, end="abort")
    if is_read:
        assert ledger.wire_ids[-1] == 106
    reply(ledger, 107, 108, turn=2)
    held = ledger.wire_ids if is_read else None
    ledger.drop_reply(1)  # not the last entry
    ledger.drop_reply(2)
    assert state(ledger) == before
    if held is not None:
        assert held[-3:].tolist() == [106, 107, 108]  # a waiting request still holds it
    ledger.drop_reply(1)
    assert counts(ledger) == (12, 8, 2)
    ledger.drop_reply(1)
    assert ledger.segments[-1].kind is SegmentKind.OBSERVATION


@pytest.mark.parametrize("reads", [(), (0,), (1,), (0, 1)])
def test_dropped_observation_leaves_the_ledger_as_it_was_before_it(reads: tuple[int, ...]) -> None:
    ledger, untouched = played(), played()
    if 0 in reads:
        assert ledger.wire_ids
    ledger.add_observation(shown(3), turn=2)
    if 1 in reads:
        assert ledger.wire_ids[-1] == 6
    ledger.drop_observation()
    assert counts(ledger) == counts(untouched)
    assert ledger.wire_ids == untouched.wire_ids
    assert ledger.segments == untouched.segments
    assert ledger.images == untouched.images
    assert [one.token_count for one in ledger.features] == [3, 2, 2]


def test_only_a_last_observation_can_be_dropped() -> None:
    ledger = played()
    with pytest.raises(LedgerFault, match="must be an observation, got a model"):
        ledger.drop_observation()
    assert len(ledger.segments) == 5


def test_wire_ids_are_built_once_and_read_back_in_64_bits() -> None:
    ledger = Ledger()
    ledger.start(text(1, WIDE - 1), turn=0)
    assert ledger.wire_ids.itemsize == 4
    assert ledger.wire_ids is ledger.wire_ids
    reply(ledger, WIDE, turn=0)
    assert ledger.wire_ids.tolist() == [1, WIDE - 1, WIDE]


@pytest.mark.parametrize("first", [1, WIDE])
def test_columns_of_a_segment_keep_no_other_memory(first: int) -> None:
    ledger = Ledger()
    ledger.start(text(first, 2), turn=0)
    reply(ledger, first, turn=0)

    columns = ("wire_ids", "train_ids", "loss_mask", "logprobs")
    kept = [one.array(name).base for one in ledger.segments for name in columns]

    assert not any(isinstance(base, (memoryview, bytes)) for base in kept)


def branched(wide: int = 0) -> tuple[Ledger, tuple[Branch, ...]]:
    """Return a replayed ledger whose second sequence shares two segments, and its branches."""
    ledger = played()
    ledger.add_observation(text(7, 8), turn=2)
    reply(ledger, 109, turn=2)
    segments = list(ledger.segments)
    if wide:
        ids = (101, wide)
        segments[1] = Segment(
            kind=SegmentKind.MODEL, turn=0, wire_ids=ids, train_ids=ids, logprobs=(-1.0, -1.0)
        )
    branches = (Branch(segment=5, parent=0, at=2, reason="branch"),)
    again = Ledger()
    again.replay(segments, branches)
    return again, branches


@pytest.mark.parametrize("wide", [0, WIDE])
def test_replayed_ledger_continues_the_last_sequence(wide: int) -> None:
    ledger, branches = branched(wide)
    assert tuple(ledger.branches) == branches
    assert len(ledger.segments) == 7
    assert ledger.wire_ids.tolist() == [9, 6, 101, wide or 102, 7, 8, 109]
    assert ledger.images == [picture(0)]
    assert [one.token_count for one in ledger.features] == [3]
    assert counts(ledger) == (9, 14, 6)
    reply(ledger, 110, turn=3)
    assert ledger.wire_ids[-2:].tolist() == [109, 110]
    assert counts(ledger) == (10, 15, 7)


def test_replayed_ledger_equals_the_one_that_was_recorded() -> None:
    ledger, again = played(), Ledger()
    ledger.start(text(1), turn=2)
    reply(ledger, 106, turn=2)
    again.replay(ledger.segments, ledger.branches)
    assert state(again) == state(ledger)


def test_finished_ledger_has_each_reward_on_the_last_part_of_its_reply() -> None:
    assert [one.reward for one in played().finished({0: 0.5, 1: 1.0})] == [
        None, 0.5, None, None, 1.0,
    ]  # fmt: skip
    assert [one.reward for one in played().finished({1: 1.0})] == [None, None, None, None, 1.0]


def test_finished_ledger_ends_with_a_reply_and_has_no_branch_after_it() -> None:
    ledger = played()
    ledger.start(text(1), turn=2)
    reply(ledger, 106, turn=2)
    ledger.add_observation(text(7), turn=3)
    ledger.start(text(2), turn=3)
    assert [one.segment for one in ledger.branches] == [5, 8]
    assert ledger.finished({})[-1].train_ids == (106,)
    assert [one.segment for one in ledger.branches] == [5]
    unanswered = played()
    unanswered.start(text(1), turn=2)
    assert len(unanswered.finished({})) == 5
    assert unanswered.branches == []


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_finished_ledger_without_a_reply_is_its_first_prompt(starts: int) -> None:
    ledger = Ledger()
    for number in range(starts):
        ledger.start(text(number), turn=0)
    assert [one.train_ids for one in ledger.finished({})] == [(0,)]
    assert ledger.branches == []


@quick
@given(
    st.lists(
        st.sampled_from(["start", "observe", "unobserve", "reply", "drop", "replay", "read"]),
        max_size=20,
    )
)
def test_ledger_gives_the_ids_of_the_current_sequence_whenever_they_are_read(
    steps: list[str],
) -> None:
    ledger, turn = Ledger(), 0
    context = Encoded(wire_ids=(1, 2), train_ids=(1, 2), images=(), features=())
    feature = ImageFeatures(tensors={}, token_count=2)
    shown = Encoded(wire_ids=(9,), train_ids=(9, 9), images=(picture(1),), features=(feature,))
    for step in ["start", *steps]:
        if step == "start":
            ledger.start(context, turn=turn)
        elif step == "observe":
            ledger.add_observation(context, turn=turn)
        elif step == "unobserve":
            counts = ledger.train_length, ledger.response_tokens, len(ledger.images)
            ledger.add_observation(shown, turn=turn)
            assert ledger.wire_ids[-1] == 9
            ledger.drop_observation()
            assert (ledger.train_length, ledger.response_tokens, len(ledger.images)) == counts
        elif step == "reply":
            for count in (0, 3):  # an abort cuts a reply in two
                ledger.add_reply(
                    range(count),
                    [-1.0] * count,
                    turn=turn,
                    finish_reason="stop",
                    weight_version=None,
                    extras={},
                )
            turn += 1
        elif step == "drop":
            ledger.drop_reply(turn - 1)
        elif step == "replay":
            again = Ledger()
            again.replay(ledger.segments, ledger.branches)
            ledger = again
        else:
            assert ledger.wire_ids is ledger.wire_ids
        if step == "read" or len(steps) % 2:
            sequence = sequences_of(ledger.segments, ledger.branches)[-1].segments
            assert tuple(ledger.wire_ids) == tuple(i for part in sequence for i in part.wire_ids)
    sequence = sequences_of(ledger.segments, ledger.branches)[-1].segments
    assert tuple(ledger.wire_ids) == tuple(i for part in sequence for i in part.wire_ids)
