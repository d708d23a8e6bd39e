"""Credit in a tree of forked episodes."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.trajectories import leaf
from hypothesis import given
from hypothesis import strategies as st

from envkit.advantages import Baseline, tree_advantages
from envkit.errors import ConfigurationError
from envkit.trajectory import Trajectory

REWARDS = st.none() | st.sampled_from([0.0, 0.25, 1.0, -2.0])


@st.composite
def trees(draw: st.DrawFn, rewards: st.SearchStrategy[Any] = REWARDS) -> list[Trajectory]:
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


@given(rewards=st.lists(REWARDS, min_size=1, max_size=6), local=st.floats(0, 1), fork=st.booleans())
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


def test_tree_advantages_of_forks_of_forks() -> None:
    leaves = [
        leaf("trunk", 0.0),
        leaf("a", 1.0, origin=("trunk", 1)),
        leaf("b", 0.0, origin=("a", 2)),
        leaf("c", 1.0, origin=("trunk", 3)),
    ]
    # Root 1/2. Trunk: turn 0 in all leaves, turns 1-2 in trunk and c, turn 3 alone.
    # Fork a: turn 1 in a and b, turns 2-3 alone.
    assert tree_advantages(leaves, local_share=0) == {
        "trunk": (0.0, 0.0, 0.0, -0.5),
        "a": (0.0, 0.0, 0.5, 0.5),
        "b": (0.0, 0.0, -0.5, -0.5),
        "c": (0.0, 0.0, 0.0, 0.5),
    }
    unequal = [*leaves[:3], leaf("c", 0.0, origin=("trunk", 3))]
    assert tree_advantages(unequal, local_share=1) == {
        "trunk": (0.0, -0.25, -0.25, 0.0),
        "a": (0.0, 0.25, 0.5, 0.5),
        "b": (0.0, 0.0, -0.5, -0.5),
        "c": (0.0, 0.0, 0.0, 0.0),
    }


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


@pytest.mark.parametrize(
    ("leaves", "local_share", "message"),
    [
        ([leaf("a", 1.0, origin=("trunk", 1))], 0.5, "is not among the leaves"),
        (
            [leaf("a", 1.0, origin=("b", 1)), leaf("b", 1.0, origin=("a", 1))],
            0.5,
            "is also its descendant",
        ),
        ([leaf("a", 1.0), leaf("a", 1.0)], 0.5, "twice"),
        ([leaf("a", math.nan)], 0.5, "rewards must be finite, got nan of leaf 'a'"),
        ([leaf("a", 1.0), leaf("b", math.inf, origin=("a", 1))], 0.5, "must be finite, got inf"),
        ([leaf("a", 1.0, origin=("a", 1))], 0.5, "is also its descendant"),
        ([leaf("a", 1.0), leaf("b", 0.0, origin=("a", 9), turns=10)], 0.5, "0 to 4 turns"),
        ([leaf("a", 1.0), leaf("b", 0.0, origin=("a", 3), turns=2)], 0.5, "0 to 2 turns"),
        ([leaf("a", 1.0), leaf("b", 0.0, origin=("a", -1))], 0.5, "got -1"),
        ([leaf("a", 1.0)], math.nan, "from 0 to 1"),
        ([leaf("a", 1.0)], 1.5, "from 0 to 1"),
    ],
)
def test_tree_advantages_refuse_a_broken_tree(
    leaves: list[Trajectory], local_share: float, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tree_advantages(leaves, local_share=local_share)
