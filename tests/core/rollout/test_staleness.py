"""Tokens of outdated weights: masked or dropped beyond `max_staleness`, and never before."""

from dataclasses import replace

import pytest
from fakes.boundaries import at_limit
from fakes.codecs import text_codec
from fakes.faults import say_turn
from fakes.tails import Engine, batch
from fakes.trajectories import Context, Reply, build
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.metrics import aggregate
from envkit.rollout import RolloutState, ScriptedEngine, Stale, Stragglers, Tail
from envkit.rollout.staleness import Freshness
from envkit.trajectory import SegmentKind, Trajectory
from envkit.trajectory.trajectory import STALE_TOKENS


def sampled_by(*versions: str | None) -> Trajectory:
    """Return an episode with one reply of three tokens for each version."""
    return build([Reply(weight_version=one, observation=Context()) for one in versions])


def trained(trajectory: Trajectory) -> list[str | None]:
    """Return the versions whose tokens are trained."""
    return [one.weight_version for one in trajectory.segments if any(one.loss_mask)]


@given(
    limited=st.integers(0, 3).flatmap(lambda limit: st.tuples(st.just(limit), at_limit(limit))),
    newest=st.integers(4, 9),
)
def test_token_is_masked_exactly_if_it_is_older_than_the_limit(
    limited: tuple[int, int], newest: int
) -> None:
    limit, age = limited
    freshness, old = Freshness(limit), sampled_by(str(newest - age))
    freshness.note(sampled_by(str(newest)))
    freshness.note(old)
    found = freshness.masked(old)
    assert trained(found) == ([] if age > limit else [str(newest - age)])
    assert found.metadata.get(STALE_TOKENS) == (3 if age > limit else None)
    assert (found is old) is (age <= limit)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_ages_are_those_of_each_token_not_of_its_episode(limit: int) -> None:
    freshness, mixed = Freshness(limit), sampled_by("5", "6", "7")
    freshness.note(mixed)
    found = freshness.masked(mixed)
    assert trained(found) == ["5", "6", "7"][2 - limit :]
    assert found.metadata.get(STALE_TOKENS, 0) == 3 * (2 - limit)
    assert found.train_ids() == mixed.train_ids()
    assert found.logprobs() == mixed.logprobs()
    kinds = [one.kind for one in found.segments]
    assert kinds == [one.kind for one in mixed.segments]


def test_newest_weights_are_those_of_the_whole_run() -> None:
    freshness, first = Freshness(0), sampled_by("3")
    freshness.note(first)
    assert freshness.masked(first) is first
    for versions in (("5", "4"), ("2",)):
        freshness.note(sampled_by(*versions))
    assert trained(freshness.masked(first)) == []
    assert trained(freshness.masked(sampled_by("4"))) == []
    assert trained(freshness.masked(sampled_by("5"))) == ["5"]


@pytest.mark.parametrize(("limit", "expected"), [(0, []), (1, ["default"])])
def test_weights_that_the_server_was_started_with_are_number_0(
    limit: int, expected: list[str]
) -> None:
    freshness, first = Freshness(limit), sampled_by("default")
    freshness.note(first)
    assert freshness.masked(first) is first
    freshness.note(sampled_by("1"))
    assert trained(freshness.masked(first)) == expected


def test_tokens_that_were_masked_before_do_not_count_as_stale() -> None:
    old = sampled_by("1")
    segments = tuple(
        replace(one, loss_mask=(1, 0, 0)) if one.kind is SegmentKind.MODEL else one
        for one in old.segments
    )
    freshness, old = Freshness(0), replace(old, segments=segments, metadata={"note": 1})
    freshness.note(old)
    freshness.note(sampled_by("2"))
    assert freshness.masked(old).metadata == {"note": 1, STALE_TOKENS: 1}


@pytest.mark.parametrize("version", ["script", "", None, "1.5"])
def test_weights_without_a_number_have_no_age(version: str | None) -> None:
    with pytest.raises(ConfigurationError, match="must be integers, got"):
        Freshness(1).note(sampled_by(version))


def test_episode_without_a_reply_has_no_stale_tokens() -> None:
    freshness, empty = Freshness(0), build(())
    freshness.note(empty)
    assert freshness.masked(empty) is empty


@pytest.mark.parametrize("stale", [Stale.MASK, Stale.DROP])
async def test_tokens_of_weights_that_are_too_old_are_not_trained(stale: Stale) -> None:
    engine, state = Engine(), RolloutState()
    tail = Tail(oversample=1.5, then=Stragglers.PARK, max_staleness=1, stale=stale)
    await batch(engine, tail, groups=8, size=2, state=state)
    parked = {group.group_id for group in state.parked if group.members}
    engine.version, engine.is_quick = 2, True
    second, _, _ = await batch(engine, tail, groups=8, size=2, state=state, seed=1)
    newest = {one.group_id for one in second if any(s.weight_version == "2" for s in one.segments)}
    old = [
        one
        for one in second
        if one.group_id in newest and any(s.weight_version == "0" for s in one.segments)
    ]
    if stale is Stale.DROP:
        assert old == []
        assert {one.group_id for one in state.dropped} & parked
        return
    assert old
    for one in old:
        trained = [s for s in one.segments if any(s.loss_mask)]
        assert all(s.weight_version == "2" for s in trained)
        masked = sum(len(s.train_ids) for s in one.segments if s.weight_version == "0")
        assert one.metadata["stale_tokens"] == masked > 0
    counted = sum(one.metadata.get("stale_tokens", 0) for one in second)
    assert aggregate(second)["tokens/stale"] == counted


async def test_staleness_is_refused_where_weights_have_no_numbers() -> None:
    tail = Tail(max_staleness=1)
    with pytest.raises(ConfigurationError, match="must be integers, got 'script'"):
        await batch(ScriptedEngine(text_codec(), say_turn), tail, groups=4)
