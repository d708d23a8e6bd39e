"""Groups of random histories, and what the rows of an adapter must hold of them.

A group is one episode and its forks, some of them faulted, driven by `fakes.history_campaign`.
Every sampled token has an id of its own, so its owner can be found in any trainer's columns.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import pytest
from fakes.history_campaign import FIRST_SAMPLED, Family, Live

from envkit.advantages import Baseline
from envkit.errors import FaultKind
from envkit.trajectory import (
    FaultPlace,
    FaultRecord,
    SegmentKind,
    StopReason,
    Trajectory,
    fork_before,
)

SEEDS = range(25)
FILLER = 7
REWRITES = 30


def random_group(seed: int, *, operations: int = 40) -> tuple[Trajectory, ...]:
    """Return finished and faulted episodes: forks below rewrites and rewrites below forks."""
    family = Family(seed, Counter())
    for _ in range(operations):
        if not family.operate():
            break
    return _forked(family, (family.append, family.rewrite, family.summary))


def plain_group(seed: int) -> tuple[Trajectory, ...]:
    """Return finished and faulted episodes of one sequence each, most of them forks."""
    family = Family(seed, Counter())
    for _ in range(5):
        family.append(family.live[0])
    return _forked(family, (family.append,))


def rewritten_often(seed: int) -> tuple[Trajectory, ...]:
    """Return a group of two: an episode with 30 rewrites, and its fork in the middle of them."""
    family = Family(seed, Counter())
    for _ in range(REWRITES):
        family.rewrite(family.live[0])
    family.leave(family.live[0], StopReason.TERMINATED)
    (parent,) = family.stored.values()
    turns = [one.turn for one in parent.turns if one.purpose is None]
    fork = fork_before(parent, turns[len(turns) // 2], episode_id="fork")
    family.stored[fork.episode_id] = fork
    return _finished(family)


def with_silent_leaves(group: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """Add two forks that sampled nothing: one cut by a limit, and one that faulted."""
    parent = next(one for one in group if not one.is_faulted and one.own_turns)
    turn = next(one.turn for one in reversed(parent.turns) if one.purpose is None)
    silent = fork_before(parent, turn, episode_id="silent")
    reward = sum(one.reward or 0.0 for one in silent.turns)
    fault = FaultRecord(where=FaultPlace.GENERATE, kind=FaultKind.TRANSIENT, message="lost")
    return (
        *group,
        replace(silent, stop_reason=StopReason.CONTEXT_TOKENS, reward=reward),
        replace(silent, episode_id="lost", stop_reason=StopReason.ENGINE_FAULT, fault=fault),
    )


def without_images(group: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """Return the episodes with their ids alone, for a trainer that wants real patches."""

    def bare(one: Trajectory) -> Trajectory:
        segments = tuple(replace(segment, images=(), features=()) for segment in one.segments)
        return replace(one, segments=segments)

    return tuple(map(bare, group))


def all_groups() -> Iterator[tuple[str, tuple[Trajectory, ...]]]:
    """Yield every group with its name, for the message of a test that fails."""
    for seed in SEEDS:
        yield f"random {seed}", random_group(seed)
        yield f"plain {seed}", plain_group(seed)
    yield "30 rewrites, the fork faulted", rewritten_often(3)
    yield "30 rewrites", rewritten_often(4)


def own_tokens(trajectory: Trajectory) -> set[int]:
    """Return the sampled tokens that an episode must train."""
    if trajectory.is_faulted:
        return set()
    own = (one for one in trajectory.own_segments if one.kind is SegmentKind.MODEL)
    return {token for segment in own for token in segment.train_ids}


def check_owners(
    group: Sequence[Trajectory], rows: Iterable[tuple[int, Sequence[int], Sequence[int]]]
) -> None:
    """Every sampled token is trained once, in a row of its own episode, and nothing else is.

    Args:
        group: The episodes.
        rows: Number of the episode, ids and mask of each row.
    """
    owners: Counter[tuple[int, int]] = Counter()
    for number, ids, mask in rows:
        assert len(ids) == len(mask)
        owners.update(
            (number, int(i)) for i, is_trained in zip(ids, mask, strict=True) if is_trained
        )
    assert set(owners.values()) <= {1}, "a token is trained twice"
    expected = {(n, token) for n, one in enumerate(group) for token in own_tokens(one)}
    assert owners.keys() == expected
    assert all(token >= FIRST_SAMPLED for _, token in owners)


def check_advantages(
    group: Sequence[Trajectory], rows: Iterable[tuple[int, float]], *, is_scaled: bool = False
) -> None:
    """Every row has the advantage of its episode over the group's rewarded episodes.

    Args:
        group: The episodes.
        rows: Number of the episode and advantage of each row that trains a token.
        is_scaled: Whether it was divided by the deviation.
    """
    baseline = Baseline.of(one.reward for one in group)
    for number, advantage in rows:
        expected = baseline.advantage(group[number].reward, is_scaled=is_scaled)
        assert advantage == pytest.approx(expected, abs=1e-4)


def _forked(family: Family, operations: Sequence[Callable[[Live], None]]) -> tuple[Trajectory, ...]:
    """Finish the family's episodes, then fork them and the forks."""
    for _ in range(3):
        _finished(family)
        family.fork(family.rng.choice([one for one in family.stored.values() if one.turns]))
        for _ in range(family.rng.randrange(6)):
            if family.live:
                family.rng.choice(operations)(family.live[-1])
    return _finished(family)


def _finished(family: Family) -> tuple[Trajectory, ...]:
    while parked := [
        one for one in family.stored.values() if one.stop_reason is StopReason.ABORTED
    ]:
        family.resume(parked[0])
        family.end(family.live[-1])
    while family.live:
        family.end(family.live[0])
    return tuple(replace(one, group_id="group") for one in family.stored.values())
