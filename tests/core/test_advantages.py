"""Baselines of groups, and advantages by turn."""

import random
from typing import Any

import numpy as np
import pytest
from fakes.needs import TORCH
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from envkit.advantages import Baseline, TurnRewards, turn_advantages
from envkit.trajectory.projection import Row

REWARDS = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=4)


def row(rewards: list[float], *, is_fault: bool = False, behind: int = 0) -> Row:
    """Return a row of turns of three tokens, the first of them an observation's."""
    mask = (0, 1, 1) * len(rewards) + (0, 1) * behind
    return Row(
        prompt_ids=(1,),
        response_ids=(7,) * len(mask),
        loss_mask=mask,
        logprobs=(-1.0,) * len(mask),
        reward=None if is_fault else sum(rewards),
        turn_rewards=tuple((3 * n + 2, value) for n, value in enumerate(rewards)),
        turns=tuple(range(len(rewards))),
        is_last=True,
    )


def advantages(*rows: Row, **options: Any) -> list[NDArray[np.float32]]:
    given: dict[str, Any] = {"discount": 0.0, "is_scaled": False, "groups": [0] * len(rows)}
    return turn_advantages([TurnRewards.of_rows([one]) for one in rows], **{**given, **options})


@given(rewards=st.lists(st.none() | st.floats(-4, 4), max_size=8))
def test_baseline_is_that_of_the_rewarded_members(rewards: list[float | None]) -> None:
    known = [reward for reward in rewards if reward is not None]
    found = Baseline.of(rewards)
    assert found == Baseline.of(known)
    assert found.count == len(known)
    for reward in known:
        theirs = reward - float(np.mean(known))
        assert found.advantage(reward, is_scaled=False) == pytest.approx(theirs)
        scale = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
        assert found.advantage(reward, is_scaled=True) == pytest.approx(
            theirs / (scale + 1e-6), abs=1e-6
        )
    assert found.advantage(None, is_scaled=True) == 0.0


def test_turn_advantage_is_its_own_reward_without_discount() -> None:
    found = advantages(row([1.0, 0.0]), row([0.0, 0.0]))
    assert [one.tolist() for one in found] == [[0.5] * 3 + [0.0] * 3, [-0.5] * 3 + [0.0] * 3]


def test_turn_advantage_counts_later_rewards_by_the_discount() -> None:
    found = advantages(row([0.0, 1.0]), row([0.0, 0.0]), discount=0.5)
    assert found[0].tolist() == [0.25] * 3 + [0.5] * 3


@settings(deadline=None)
@given(rewards=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=6))
def test_turn_advantage_of_one_turn_is_what_trl_computes(rewards: list[float]) -> None:
    TORCH.require()
    import torch

    values = torch.tensor(rewards)
    theirs = (values - values.mean()) / (values.std() + 1e-4)
    found = advantages(*(row([value]) for value in rewards), is_scaled=True, epsilon=1e-4)
    assert [float(one[0]) for one in found] == pytest.approx(theirs.tolist(), abs=1e-5)


@given(members=st.lists(REWARDS, min_size=2, max_size=5), data=st.data())
def test_turn_advantages_sum_to_zero_over_a_turns_members(
    members: list[list[float]], data: st.DataObject
) -> None:
    discount = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    found = advantages(*(row(rewards) for rewards in members), discount=discount)
    for turn in range(max(map(len, members))):
        reached = [n for n, rewards in enumerate(members) if turn < len(rewards)]
        column = [float(found[n][3 * turn]) for n in reached]
        assert sum(column) == pytest.approx(0.0, abs=1e-5)
        if len(reached) == 1:
            assert column == [0.0]


def test_turn_advantages_leave_faults_out_of_the_group() -> None:
    found = advantages(row([1.0]), row([0.0]), row([0.0], is_fault=True))
    assert [float(one[0]) for one in found] == [0.5, -0.5, 0.0]


def test_turn_advantages_of_faults_alone_are_zero() -> None:
    assert [one.tolist() for one in advantages(row([1.0], is_fault=True))] == [[0.0]]


def test_turn_advantage_after_all_rewards_equals_no_reward() -> None:
    found = advantages(row([1.0], behind=1), row([0.0, 1.0]))
    assert found[0][3:5].tolist() == [-0.5, -0.5]


def test_turn_advantages_stay_inside_groups() -> None:
    rows = (row([1.0]), row([0.0]), row([1.0, 1.0]), row([1.0]))
    found = advantages(*rows, groups=["a", "b", "a", "b"])
    assert [float(one[0]) for one in found] == [0.0, -0.5, 0.0, 0.5]
    assert not found[2][3:].any()


@given(rewards=REWARDS, seed=st.integers(0, 1 << 16))
def test_turn_rewards_of_columns_are_those_of_the_row(rewards: list[float], seed: int) -> None:
    draw = random.Random(seed)
    mask: list[int] = []
    column: list[float] = []
    turn_rewards: list[tuple[int, float]] = []
    for reward in rewards:
        observation, reply = draw.randint(1, 4), draw.randint(1, 4)
        mask += [0] * observation + [1] * reply
        column += [0.0] * (observation + reply - 1) + [reward]
        turn_rewards.append((len(mask) - 1, reward))
    whole = Row(
        prompt_ids=(1,),
        response_ids=(7,) * len(mask),
        loss_mask=tuple(mask),
        logprobs=(0.0,) * len(mask),
        reward=sum(rewards),
        turn_rewards=tuple(turn_rewards),
        turns=tuple(range(len(rewards))),
        is_last=True,
    )
    assert TurnRewards.of_columns(mask, column) == TurnRewards.of_rows([whole])


def test_turn_rewards_of_columns_keep_a_reward_after_the_last_reply() -> None:
    found = TurnRewards.of_columns([1, 0, 1, 0], [0.0, 0.0, 0.5, 0.25])
    assert (found.ends, found.rewards) == ((1, 3), (0.0, 0.75))
