"""The numbers of a tail: how many groups a batch starts, and how many complete it."""

from enum import StrEnum
from fractions import Fraction
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.trajectories import build
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.rollout import FaultPolicy, RolloutConfig, Stale, Stragglers, Tail
from envkit.rollout.tail import ParkedGroup, is_aborted, marked
from envkit.trajectory import StopReason


def test_tail_without_settings_plays_every_group_to_its_end() -> None:
    tail = Tail()
    assert (tail.oversample, tail.stop_at, tail.max_staleness) == (1, 1, None)
    assert (tail.then, tail.stale, tail.cuts) == (Stragglers.WAIT, Stale.MASK, False)
    assert (tail.started(7), tail.needed(7)) == (7, 7)


@pytest.mark.parametrize("then", Stragglers)
def test_tail_cuts_stragglers_unless_it_waits(then: Stragglers) -> None:
    assert Tail(then=then).cuts is (then is not Stragglers.WAIT)


def test_tail_refuses_what_makes_no_batch() -> None:
    for wrong, text in (
        ({"oversample": 0.999, "then": "drop"}, "at least 1"),
        ({"stop_at": 0, "then": "drop"}, "above 0"),
        ({"stop_at": 1.001, "then": "park"}, "at most 1"),
        ({"oversample": 1.001}, "waits for every group"),
        ({"stop_at": 0.999}, "waits for every group"),
        ({"then": "forget"}, "one of"),
        ({"oversampling": 2}, "oversample"),
        ({"max_staleness": -1}, "at least 0"),
        ({"stale": "keep"}, "one of"),
        ({"oversample": float("nan"), "then": "drop"}, "finite"),
        ({"oversample": float("inf"), "then": "drop"}, "finite"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            RolloutConfig.from_mapping({"tail": wrong})


@pytest.mark.parametrize(
    "right",
    [
        {"oversample": 1, "stop_at": 1},
        {"oversample": 1, "stop_at": 1, "then": "drop"},
        {"oversample": 1.5, "then": "park"},
        {"stop_at": 0.001, "then": "drop"},
        {"max_staleness": 0},
        {"max_staleness": 1},
    ],
    ids=str,
)
def test_tail_accepts_numbers_at_their_limits(right: dict[str, Any]) -> None:
    config = RolloutConfig.from_mapping({"tail": right})
    assert RolloutConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize(
    ("groups", "oversample", "started"),
    [
        (10, 1.1, 11),
        (100, 1.1, 110),
        (10, 1.0, 10),
        (10, 1.11, 12),
        (3, 1.1, 4),
        (1, 1.0, 1),
        (1000, 1.001, 1001),
    ],
)
def test_tail_starts_the_exact_multiple_of_its_groups(
    groups: int, oversample: float, started: int
) -> None:
    assert Tail(oversample=oversample, then=Stragglers.DROP).started(groups) == started


@pytest.mark.parametrize(
    ("groups", "stop_at", "needed"),
    [(10, 0.7, 7), (100, 0.07, 7), (10, 0.71, 8), (10, 1.0, 10), (1, 0.5, 1), (1, 1e-12, 1)],
)
def test_tail_needs_the_exact_share_of_its_groups_and_at_least_one(
    groups: int, stop_at: float, needed: int
) -> None:
    assert Tail(stop_at=stop_at, then=Stragglers.DROP).needed(groups) == needed


@given(
    groups=st.integers(1, 1000),
    percent=st.integers(100, 400) | at_limit(110, least=100),
    share=st.integers(1, 100) | at_limit(100, least=1).filter(lambda share: share <= 100),
)
def test_tail_rounds_up_what_decimal_numbers_give(groups: int, percent: int, share: int) -> None:
    tail = Tail(oversample=percent / 100, stop_at=share / 100, then=Stragglers.DROP)
    assert 1 <= tail.needed(groups) <= groups <= tail.started(groups)
    assert tail.started(groups) == -(-Fraction(groups * percent, 100) // 1)
    assert tail.needed(groups) == -(-Fraction(groups * share, 100) // 1)


def test_parked_group_is_complete_once_no_member_is_missing_or_aborted() -> None:
    done, cut = (build(()),), (build((), stop_reason=StopReason.ABORTED),)
    assert (is_aborted(done), is_aborted(cut), is_aborted((*done, *cut))) == (False, True, True)
    for members, is_complete in (
        ({}, False),
        ({0: done}, False),
        ({0: done, 1: cut}, False),
        ({0: done, 1: (*done, *cut)}, False),
        ({0: done, 1: done}, True),
    ):
        group = ParkedGroup(
            group_id="g", seed=1, task=None, initial_observation_hash=None, members=members, times=1
        )
        assert group.is_complete(2) is is_complete


def test_marked_record_keeps_its_metadata() -> None:
    trajectory = build((), metadata={"a": 1, "b": 1})
    assert marked(trajectory, {"b": 2, "c": 3}).metadata == {"a": 1, "b": 2, "c": 3}
    assert trajectory.metadata == {"a": 1, "b": 1}


def test_trainer_with_a_tail_gets_an_error_with_the_alternative() -> None:
    with pytest.raises(ConfigurationError, match="use --partial"):
        RolloutConfig.for_trainer({"tail": {"then": "park"}}, tail="--partial")
    with pytest.raises(ConfigurationError, match="use --partial"):
        RolloutConfig.for_trainer(RolloutConfig(tail=Tail(then=Stragglers.DROP)), tail="--partial")
    assert RolloutConfig.for_trainer(None, tail="--partial") == RolloutConfig()


def test_settings_take_the_value_of_a_choice() -> None:
    config = RolloutConfig(on_fault="retry", tail=Tail(then="park", stale="drop"))  # pyright: ignore[reportArgumentType]  # a user's text
    assert (config.on_fault, config.tail.then, config.tail.stale) == (
        FaultPolicy.RETRY, Stragglers.PARK, Stale.DROP,
    )  # fmt: skip
    assert all(isinstance(one, StrEnum) for one in (config.on_fault, config.tail.then))
    assert RolloutConfig.from_mapping(config.to_mapping()) == config
