"""Advantages by turn; TRL itself is not needed."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.trajectory.projection import Row
from envkit_trl.credit import turn_advantages

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


def advantages(*rows: Row, **options: Any) -> torch.Tensor:
    width = max(len(one.response_ids) for one in rows)
    given: dict[str, Any] = {"group_size": len(rows), "discount": 0.0, "is_scaled": False}
    return turn_advantages(rows, width=width, **{**given, **options})


def test_trl_credit_of_a_turn_is_its_own_reward_without_discount() -> None:
    found = advantages(row([1.0, 0.0]), row([0.0, 0.0]))
    assert found.tolist() == [[0.5] * 3 + [0.0] * 3, [-0.5] * 3 + [0.0] * 3]


def test_trl_credit_of_a_turn_counts_later_rewards_by_the_discount() -> None:
    found = advantages(row([0.0, 1.0]), row([0.0, 0.0]), discount=0.5)
    assert found[0].tolist() == [0.25] * 3 + [0.5] * 3


@settings(deadline=None)
@given(rewards=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=6))
def test_trl_credit_of_one_turn_is_what_trl_computes(rewards: list[float]) -> None:
    values = torch.tensor(rewards)
    theirs = (values - values.mean()) / (values.std() + 1e-4)
    found = advantages(*(row([value]) for value in rewards), is_scaled=True)
    torch.testing.assert_close(found[:, 0], theirs)


@settings(deadline=None)
@given(members=st.lists(REWARDS, min_size=2, max_size=5), data=st.data())
def test_trl_credit_sums_to_zero_over_a_turns_members(
    members: list[list[float]], data: st.DataObject
) -> None:
    discount = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    found = advantages(*(row(rewards) for rewards in members), discount=discount)
    for turn in range(max(map(len, members))):
        reached = [n for n, rewards in enumerate(members) if turn < len(rewards)]
        column = found[reached, 3 * turn]
        assert float(column.sum()) == pytest.approx(0.0, abs=1e-5)
        if len(reached) == 1:
            assert not float(column)


def test_trl_credit_leaves_faults_out_of_the_group() -> None:
    alone = advantages(row([1.0]), row([0.0]), row([0.0], is_fault=True))
    assert alone[:, 0].tolist() == [0.5, -0.5, 0.0]


def test_trl_credit_of_tokens_behind_all_rewards_is_that_of_no_reward() -> None:
    found = advantages(row([1.0], behind=1), row([0.0, 1.0]))
    assert found[0, 3:5].tolist() == [-0.5, -0.5]


def test_trl_credit_stays_inside_groups_and_padding_gets_none() -> None:
    rows = (row([1.0]), row([1.0, 1.0]), row([0.0]), row([1.0]))
    found = turn_advantages(rows, group_size=2, discount=0.0, is_scaled=False, width=8)
    assert found.shape == (4, 8)
    assert found[:, 0].tolist() == [0.0, 0.0, -0.5, 0.5]
    assert not found[:, 6:].any()
