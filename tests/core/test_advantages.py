"""Advantages: of a group, by turn and in a tree, at the limits of each rule."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.needs import TORCH
from fakes.trajectories import leaf
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.advantages import Baseline, TurnRewards, tree_advantages, turn_advantages
from envkit.errors import ConfigurationError
from envkit.trajectory import Trajectory
from envkit.trajectory.projection import Row

EPSILON = 1e-6


@pytest.mark.parametrize(
    ("rewards", "mean", "deviation", "count"),
    [
        ([], 0.0, 0.0, 0),
        ([None, None], 0.0, 0.0, 0),
        ([0.25], 0.25, 0.0, 1),
        ([None, 0.25], 0.25, 0.0, 1),
        ([1.0, 0.0], 0.5, math.sqrt(0.5), 2),
        ([1.0, None, 0.0, 0.0], 1 / 3, math.sqrt(1 / 3), 3),
    ],
)
def test_baseline_of_a_group_counts_its_rewards(
    rewards: list[float | None], mean: float, deviation: float, count: int
) -> None:
    found = Baseline.of(iter(rewards))
    assert (found.mean, found.deviation) == pytest.approx((mean, deviation))
    assert found.count == count


def test_baseline_adds_epsilon_to_the_deviation() -> None:
    flat = Baseline(mean=1.0)
    assert flat.advantage(1.0 + EPSILON, is_scaled=True) == pytest.approx(1.0)
    assert flat.advantage(1.5, is_scaled=True, epsilon=0.25) == 2.0
    spread = Baseline(mean=1.0, deviation=0.75)
    assert spread.advantage(3.0, is_scaled=True, epsilon=0.25) == 2.0
    assert spread.advantage(3.0, is_scaled=False, epsilon=0.25) == 2.0
    assert spread.advantage(2.0, is_scaled=False) == 1.0


@pytest.mark.parametrize("is_scaled", [False, True])
def test_baseline_gives_zero_to_a_member_without_a_reward(is_scaled: bool) -> None:
    assert Baseline(mean=1.0, deviation=1.0).advantage(None, is_scaled=is_scaled) == 0.0


def turns(length: int, *pairs: tuple[int, float]) -> TurnRewards:
    ends, rewards = zip(*pairs, strict=True) if pairs else ((), ())
    return TurnRewards(length=length, ends=ends, rewards=rewards)


@pytest.mark.parametrize(
    ("mask", "rewards", "expected"),
    [
        ([], [], turns(0)),
        ([0], [0.5], turns(1)),
        ([1], [0.5], turns(1, (1, 0.5))),
        ([1, 1], [0.5, 0.25], turns(2, (2, 0.75))),
        ([1, 1, 1], [0.0, 0.0, 0.25], turns(3, (3, 0.25))),
        ([0, 1], [0.5, 0.25], turns(2, (2, 0.75))),
        ([1, 0], [0.25, 0.5], turns(2, (1, 0.75))),
        ([1, 0, 1], [0.25, 0.5, 1.0], turns(3, (1, 0.25), (3, 1.5))),
        ([1, 0, 1, 0, 1, 0], [1.0, 0, 2.0, 0, 3.0, 4.0], turns(6, (1, 1.0), (3, 2.0), (5, 7.0))),
    ],
)
def test_turn_of_columns_is_a_run_of_sampled_tokens(
    mask: list[int], rewards: list[float], expected: TurnRewards
) -> None:
    assert TurnRewards.of_columns(mask, rewards) == expected


@pytest.mark.parametrize("rewards", [[], [0.5], [0.5, 0.5, 0.5]])
def test_turn_rewards_of_columns_are_as_many_as_the_mask(rewards: list[float]) -> None:
    with pytest.raises(ValueError, match="argument 2"):
        TurnRewards.of_columns([1, 1], rewards)


def test_turn_of_a_row_ends_after_its_rewarded_token() -> None:
    row = Row(
        prompt_ids=(1,),
        response_ids=(7,) * 5,
        loss_mask=(1, 0, 1, 1, 0),
        logprobs=(0.0,) * 5,
        reward=0.75,
        turn_rewards=((0, 0.25), (3, 0.5)),
        turns=(0, 1),
        is_last=True,
    )
    assert TurnRewards.of_rows([row]) == turns(5, (1, 0.25), (4, 0.5))
    assert TurnRewards.of_rows([replace(row, reward=0.0)]) == turns(5, (1, 0.25), (4, 0.5))
    assert TurnRewards.of_rows([replace(row, reward=None)]) is None


@pytest.mark.parametrize(
    ("one", "bounds", "returns"),
    [
        (turns(0), (0, 0), [0.0]),
        (turns(3), (0, 3), [0.0]),
        (turns(3, (3, 1.0)), (0, 3), [1.0]),
        (turns(4, (3, 1.0)), (0, 3, 4), [1.0, 0.0]),
        (turns(6, (2, 1.0), (6, 2.0)), (0, 2, 6), [2.0, 2.0]),
        (turns(7, (2, 1.0), (4, 2.0), (6, 4.0)), (0, 2, 4, 6, 7), [3.0, 4.0, 4.0, 0.0]),
    ],
)
def test_turn_after_the_last_reward_is_separate_and_returns_nothing(
    one: TurnRewards, bounds: tuple[int, ...], returns: list[float]
) -> None:
    assert one.bounds() == bounds
    assert one.returns(0.5) == returns


def advantages(*rows: TurnRewards | None, **options: Any) -> list[list[float]]:
    given: dict[str, Any] = {"discount": 0.0, "is_scaled": False, "groups": [0] * len(rows)}
    return [one.tolist() for one in turn_advantages(rows, **{**given, **options})]


def test_turn_advantage_covers_the_tokens_of_its_turn() -> None:
    left, right = turns(5, (2, 1.0), (5, 3.0)), turns(4, (1, 0.0), (4, 1.0))
    assert advantages(left, right) == [[0.5, 0.5, 1.0, 1.0, 1.0], [-0.5, -1.0, -1.0, -1.0]]
    assert advantages(left, right, discount=0.5) == [
        [1.0, 1.0, 1.0, 1.0, 1.0],
        [-1.0, -1.0, -1.0, -1.0],
    ]


def test_turn_advantage_after_all_rewards_is_that_of_no_reward() -> None:
    found = advantages(turns(5, (3, 1.0)), turns(6, (3, 0.0), (6, 1.0)))
    assert found[0] == [0.5] * 3 + [-0.5] * 2


@pytest.mark.parametrize("is_scaled", [False, True])
def test_turn_advantage_of_a_turn_that_no_other_member_reached_is_zero(is_scaled: bool) -> None:
    long, short = turns(3, (1, 1.0), (2, 1.0), (3, 5.0)), turns(2, (1, 1.0), (2, 1.0))
    assert advantages(long, short, None, is_scaled=is_scaled) == [[0.0] * 3, [0.0] * 2, [0.0]]
    assert advantages(long, is_scaled=is_scaled) == [[0.0] * 3]


def test_turn_advantage_of_two_members_is_divided_by_their_deviation() -> None:
    found = advantages(turns(1, (1, 1.0)), turns(1, (1, 0.0)), is_scaled=True, epsilon=0.5)
    assert found[0][0] == pytest.approx(0.5 / (math.sqrt(0.5) + 0.5))
    assert found[1][0] == pytest.approx(-0.5 / (math.sqrt(0.5) + 0.5))
    default = advantages(turns(1, (1, EPSILON)), turns(1, (1, -EPSILON)), is_scaled=True)
    assert default[0][0] == pytest.approx(1 / (math.sqrt(2) + 1))


def test_turn_advantages_are_those_of_each_group() -> None:
    rows = [turns(1, (1, reward)) for reward in (1.0, 0.0, 3.0, 4.0)]
    found = advantages(*rows, None, groups=["a", "b", "a", "b", "a"])
    assert found == [[-1.0], [-2.0], [1.0], [2.0], [0.0]]


TREE = [
    leaf("trunk", 1.0),
    leaf("a", 0.0, origin=("trunk", 1)),
    leaf("b", 0.5, origin=("a", 2)),
    leaf("c", 2.5, origin=("trunk", 3)),
    leaf("d", None, turns=2, origin=("trunk", 1)),
]
ROOT = 1.0
"""Mean of the four rewards."""


@pytest.mark.parametrize("local_share", [0.0, 0.25, 1.0])
def test_tree_credits_a_span_against_the_root_and_the_span_before(local_share: float) -> None:
    def credit(value: float, parent: float) -> float:
        return (1 - local_share) * (value - ROOT) + local_share * (value - parent)

    found = tree_advantages(iter(TREE), local_share=local_share)
    # The trunk's turns 1 and 2 are also c's, and turn 1 of a is also b's.
    expected = {
        "trunk": [credit(ROOT, ROOT), *[credit(1.75, ROOT)] * 2, credit(1.0, 1.75)],
        "a": [0.0, credit(0.25, ROOT), *[credit(0.0, 0.25)] * 2],
        "b": [0.0, 0.0, *[credit(0.5, 0.25)] * 2],
        "c": [0.0, 0.0, 0.0, credit(2.5, 1.75)],
        "d": [0.0, 0.0],
    }
    assert {name: list(one) for name, one in found.items()} == {
        name: pytest.approx(one) for name, one in expected.items()
    }


def test_tree_weighs_both_differences_equally_by_default() -> None:
    assert tree_advantages(TREE) == tree_advantages(TREE, local_share=0.5)
    assert tree_advantages(TREE) != tree_advantages(TREE, local_share=0.25)


@pytest.mark.parametrize("turn", range(5))
def test_tree_shares_the_turns_before_a_fork(turn: int) -> None:
    leaves = [leaf("trunk", 0.0), leaf("a", 1.0, turns=5, origin=("trunk", turn))]
    found = tree_advantages(leaves, local_share=0.0)
    assert found["trunk"] == (0.0,) * turn + (-0.5,) * (4 - turn)
    assert found["a"] == (0.0,) * turn + (0.5,) * (5 - turn)


@pytest.mark.parametrize("turn", range(4))
def test_tree_fork_of_a_fork_shares_the_trunk_up_to_its_own_turn(turn: int) -> None:
    """A fork that begins before its parent's own turns has none of them."""
    leaves = [
        leaf("trunk", 0.0),
        leaf("a", 1.0, origin=("trunk", 2)),
        leaf("b", 2.0, origin=("a", turn)),
    ]
    found = tree_advantages(leaves, local_share=0.0)
    both, alone = 0.5, 0.0
    assert (
        found["trunk"]
        == {
            0: (-0.5, -0.5, -1.0, -1.0),
            1: (0.0, -0.5, -1.0, -1.0),
            2: (0.0, 0.0, -1.0, -1.0),
            3: (0.0, 0.0, -1.0, -1.0),
        }[turn]
    )
    assert found["a"] == (0.0, 0.0, both if turn == 3 else alone, alone)
    assert found["b"] == (0.0,) * turn + (1.0,) * (4 - turn)


def test_tree_reads_origins_of_leaves_without_a_reward() -> None:
    leaves = [leaf("trunk", None), leaf("a", 0.0, origin=("trunk", 1)), leaf("b", 1.0)]
    assert tree_advantages(leaves, local_share=0.0) == {
        "trunk": (0.0,) * 4,
        "a": (0.0, -0.5, -0.5, -0.5),
        "b": (0.5,) * 4,
    }


@pytest.mark.parametrize("share", [-0.01, 1.01, -1.0, 2.0, math.nan])
def test_tree_share_is_from_zero_to_one(share: float) -> None:
    with pytest.raises(ConfigurationError, match="local_share must be from 0 to 1"):
        tree_advantages(TREE, local_share=share)


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_tree_rewards_are_finite(reward: float) -> None:
    assert tree_advantages([leaf("a", 0.0), leaf("b", -1.0)])["a"] == (0.5,) * 4
    with pytest.raises(ConfigurationError, match=f"must be finite, got {reward} of leaf 'b'"):
        tree_advantages([leaf("a", 0.0), leaf("b", reward)])


@pytest.mark.parametrize(
    ("fork", "parent", "turn"), [(4, 4, -1), (4, 4, 5), (5, 4, 5), (2, 4, 3), (2, 4, -1)]
)
def test_tree_fork_shares_no_more_turns_than_both_have(fork: int, parent: int, turn: int) -> None:
    least = min(fork, parent)
    for sound in (0, least):
        tree_advantages(
            [leaf("p", 1.0, turns=parent), leaf("f", 0.0, turns=fork, origin=("p", sound))]
        )
    with pytest.raises(ConfigurationError, match=f"'f' can share 0 to {least} turns .* got {turn}"):
        tree_advantages(
            [leaf("p", 1.0, turns=parent), leaf("f", 0.0, turns=fork, origin=("p", turn))]
        )


def test_tree_with_a_missing_or_circular_origin_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'p' of leaf 'f' is not among the leaves"):
        tree_advantages([leaf("f", 1.0, origin=("p", 1))])
    with pytest.raises(ConfigurationError, match="is also its descendant"):
        tree_advantages([leaf("f", 1.0, origin=("f", 1))])
    circle = [leaf(name, 1.0, origin=(other, 1)) for name, other in ("ab", "bc", "ca")]
    with pytest.raises(ConfigurationError, match="is also its descendant"):
        tree_advantages(circle)
    pair = [leaf(name, 1.0, origin=(other, 1)) for name, other in ("ab", "ba")]
    with pytest.raises(ConfigurationError, match="'b' of leaf 'a' is also its descendant"):
        tree_advantages([leaf("x", 1.0, origin=("b", 1)), *pair])
    with pytest.raises(ConfigurationError, match="the same id twice"):
        tree_advantages([leaf("a", 1.0), leaf("a", 1.0)])


REWARDS = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=4)


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


@settings(deadline=None)
@given(rewards=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=6))
def test_turn_advantage_of_one_turn_is_what_trl_computes(rewards: list[float]) -> None:
    TORCH.require()
    import torch

    values = torch.tensor(rewards)
    theirs = (values - values.mean()) / (values.std() + 1e-4)
    found = advantages(*(turns(1, (1, one)) for one in rewards), is_scaled=True, epsilon=1e-4)
    assert [one[0] for one in found] == pytest.approx(theirs.tolist(), abs=1e-5)


@given(members=st.lists(REWARDS, min_size=2, max_size=5), data=st.data())
def test_turn_advantages_sum_to_zero_over_a_turns_members(
    members: list[list[float]], data: st.DataObject
) -> None:
    discount = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    rows = [
        turns(3 * len(rewards), *((3 * n + 3, one) for n, one in enumerate(rewards)))
        for rewards in members
    ]
    found = advantages(*rows, discount=discount)
    for turn in range(max(map(len, members))):
        reached = [n for n, rewards in enumerate(members) if turn < len(rewards)]
        column = [found[n][3 * turn] for n in reached]
        assert sum(column) == pytest.approx(0.0, abs=1e-5)
        if len(reached) == 1:
            assert column == [0.0]


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


LEAF_REWARDS = st.none() | st.sampled_from([0.0, 0.25, 1.0, -2.0])


@st.composite
def trees(draw: st.DrawFn, rewards: st.SearchStrategy[Any] = LEAF_REWARDS) -> list[Trajectory]:
    """One or two trunks and up to six forks, some of them of forks."""
    leaves = [
        leaf(f"trunk{n}", draw(rewards), turns=draw(st.integers(1, 5)))
        for n in range(draw(st.integers(1, 2)))
    ]
    for number in range(draw(st.integers(0, 6))):
        parent = draw(st.sampled_from(leaves))
        first = 0 if parent.origin is None else parent.origin.turns
        turn = draw(st.integers(first, len(parent.turns) - 1))
        turns = draw(st.integers(turn + 1, 6))
        leaves.append(
            leaf(f"fork{number}", draw(rewards), turns=turns, origin=(parent.episode_id, turn))
        )
    return leaves


@given(leaves=trees(st.just(0.25)))
def test_tree_advantages_of_equal_rewards_are_zero(leaves: Sequence[Trajectory]) -> None:
    for credit in tree_advantages(leaves).values():
        assert set(credit) == {0.0}


@given(
    rewards=st.lists(LEAF_REWARDS, min_size=1, max_size=6),
    local=st.floats(0, 1),
    fork=st.booleans(),
)
def test_tree_advantages_without_shared_turns_are_those_of_the_group(
    rewards: list[float | None], local: float, fork: bool
) -> None:
    leaves = [
        leaf(f"e{n}", one, origin=("e0", 0) if fork and n else None)
        for n, one in enumerate(rewards)
    ]
    baseline = Baseline.of(rewards)
    for one, credit in zip(
        leaves, tree_advantages(leaves, local_share=local).values(), strict=True
    ):
        expected = baseline.advantage(one.reward, is_scaled=False)
        assert credit == pytest.approx((expected,) * 4)


@given(leaves=trees(), seed=st.integers(0, 99))
def test_tree_advantages_do_not_depend_on_the_order(leaves: list[Trajectory], seed: int) -> None:
    shuffled = random.Random(seed).sample(leaves, len(leaves))
    assert tree_advantages(leaves) == tree_advantages(shuffled)


@given(leaves=trees(), local=st.floats(0, 1))
def test_tree_advantages_leave_faulted_leaves_out(leaves: list[Trajectory], local: float) -> None:
    parents = {one.origin.episode_id for one in leaves if one.origin is not None}
    kept = [one for one in leaves if one.reward is not None or one.episode_id in parents]
    found = tree_advantages(leaves, local_share=local)
    for one in leaves:
        if one.reward is None:
            assert found[one.episode_id] == (0.0,) * len(one.turns)
    without = tree_advantages(kept, local_share=local)
    assert {name: found[name] for name in without} == without


@given(leaves=trees())
def test_tree_advantages_of_shared_turns_are_in_the_owner_alone(
    leaves: list[Trajectory],
) -> None:
    for one in leaves:
        credit = tree_advantages(leaves)[one.episode_id]
        assert len(credit) == len(one.turns)
        if one.origin is not None:
            assert set(credit[: one.origin.turns]) <= {0.0}


def test_tree_advantages_treat_forks_before_one_turn_as_siblings() -> None:
    leaves = [leaf("trunk", 0.0), leaf("a", 0.5, origin=("trunk", 1))]
    named = [*leaves, leaf("b", 1.0, origin=("trunk", 1))]
    nested = [*leaves, leaf("b", 1.0, origin=("a", 1))]
    assert tree_advantages(named) == tree_advantages(nested)


@pytest.mark.parametrize("leaves", [[], [leaf("a", 1.0)], [leaf("a", None)]])
def test_tree_advantages_of_a_single_leaf_are_zero(leaves: list[Trajectory]) -> None:
    assert tree_advantages(iter(leaves)) == {one.episode_id: (0.0,) * 4 for one in leaves}


def test_tree_advantages_are_those_of_treerl_but_for_its_weights() -> None:
    """Hou et al. 2025: R(s) = (V(s) - V(root) + V(s) - V(parent)) / sqrt(leaves)."""
    leaves = [
        leaf("trunk", 1.0),
        leaf("a", 0.0, origin=("trunk", 1)),
        leaf("b", 1.0, origin=("trunk", 3)),
        leaf("c", 0.0, origin=("a", 2)),
    ]
    root = 2 / 4
    values = {"trunk 1-2": 2 / 2, "trunk 3": 1.0, "a 1": 0 / 2, "a 2-3": 0.0}
    parents = {"trunk 1-2": root, "trunk 3": 1.0, "a 1": root, "a 2-3": 0.0}
    added = {name: one - root + one - parents[name] for name, one in values.items()}
    found = tree_advantages(leaves)
    assert found["trunk"] == (0.0, *[added["trunk 1-2"] / 2] * 2, added["trunk 3"] / 2)
    assert found["a"] == (0.0, added["a 1"] / 2, *[added["a 2-3"] / 2] * 2)
