"""Recorded episodes to compare: sets of whole groups, and deliberately broken copies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envkit.errors import FaultKind
from envkit.trajectory import FaultPlace, FaultRecord, Segment, SegmentKind, StopReason, Trajectory
from envkit_conformance.delivered import Shape
from envkit_conformance.recordings import shipped_recordings


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSet:
    """The episodes of one optimizer step."""

    name: str
    about: str
    trajectories: tuple[Trajectory, ...]
    """Consecutive groups of `GROUP_SIZE`."""
    has_images: bool = False
    needs_rows: bool = False
    """Whether an episode has several sequences and so cannot be one row."""

    def suits(self, shape: Shape) -> bool:
        """Return whether the set can be delivered in this row shape."""
        return not (self.needs_rows and shape is Shape.WHOLE)


def episode_sets() -> tuple[EpisodeSet, ...]:
    """Return the sets, built from envkit's recordings."""
    known = {one.name: one.trajectory for one in shipped_recordings()}
    text = [known["text"], known["tool_calls"], known["response_tokens_reply"]]
    images = [known["images"], known["reply_cut"], known["max_images"]]
    rewritten = [known["thinking_rerender"], *text[1:]]
    compacted = [known["compaction"], *text[1:]]
    delegated = [known["sub_agent"], *text[:2]]
    dropped = [known["dropped_screenshot"], *images[1:]]
    trunk, first, second, below = (
        known[f"fork_{name}"] for name in ("trunk", "first", "second", "of_fork")
    )
    first, below = _with_bonus(first, 1.0), _with_bonus(below, -0.5)
    return (
        EpisodeSet(
            name="clean",
            about="four rewarded episodes, one truncated",
            trajectories=_group("a", [*text, known["thinking_keep"]]),
        ),
        EpisodeSet(
            name="fault",
            about="three rewarded episodes and one that faulted after its replies",
            trajectories=_group("a", [*text, faulted(known["text"])]),
        ),
        EpisodeSet(
            name="two groups",
            about="the set 'fault' and a group with higher rewards throughout",
            trajectories=(
                *_group("a", [*text, faulted(known["text"])]),
                *_group("b", [_with_bonus(one, 3.0) for one in (*text, known["turn_tokens"])]),
            ),
        ),
        EpisodeSet(
            name="images",
            about="images in several turns, one truncated, one faulted",
            trajectories=_group("a", [*images, known["env_fault_in_step"]]),
            has_images=True,
        ),
        EpisodeSet(
            name="rewritten",
            about="the set 'fault', with an episode whose template drops earlier thinking",
            trajectories=_group("a", [*rewritten, faulted(known["text"])]),
            needs_rows=True,
        ),
        EpisodeSet(
            name="compaction",
            about="an episode of four rows, because its history was summarised, and a faulted one",
            trajectories=_group("a", [*compacted, faulted(known["compaction"])]),
            needs_rows=True,
        ),
        EpisodeSet(
            name="sub-agent",
            about="an episode of three rows, one of them a sub-agent's, and a faulted one",
            trajectories=_group("a", [*delegated, faulted(known["sub_agent"])]),
            needs_rows=True,
        ),
        EpisodeSet(
            name="dropped screenshot",
            about="an episode of two rows with images, an old one dropped, and a faulted one",
            trajectories=_group("a", [*dropped, faulted(known["dropped_screenshot"])]),
            has_images=True,
            needs_rows=True,
        ),
        EpisodeSet(
            name="forks",
            about="two trees of four leaves: a leaf of the first faulted, the trunk of the second",
            trajectories=(
                *_group("a", [trunk, first, faulted(second), below]),
                *_group("b", [faulted(trunk), first, second, below]),
            ),
        ),
    )


def faulted(trajectory: Trajectory) -> Trajectory:
    """Return the episode as if its environment had failed after the last reply."""
    fault = FaultRecord(where=FaultPlace.STEP, kind=FaultKind.PERMANENT, message="it fell over")
    return replace(trajectory, stop_reason=StopReason.ENV_FAULT, fault=fault, reward=None)


def fault_as_zero(trajectory: Trajectory) -> Trajectory:
    """Return a faulted episode as if it had ended with reward 0; others unchanged."""
    if not trajectory.is_faulted:
        return trajectory
    segments = tuple(_trained(one) for one in trajectory.segments)
    turns = tuple(replace(turn, reward=0.0) for turn in trajectory.turns)
    ended = replace(trajectory, segments=segments, turns=turns, fault=None, reward=0.0)
    return replace(ended, stop_reason=StopReason.TERMINATED)


def mask_shifted(trajectory: Trajectory) -> Trajectory:
    """Return the episode with the mask of each reply shifted by one token."""

    def late(segment: Segment) -> Segment:
        if segment.kind is not SegmentKind.MODEL:
            return segment
        return replace(segment, loss_mask=(0, *segment.loss_mask[1:]))

    moved = observation_trained(trajectory)
    return replace(moved, segments=tuple(map(late, moved.segments)))


def observation_trained(trajectory: Trajectory) -> Trajectory:
    """Return the episode with training on the token after each reply, which was not sampled."""
    segments = list(trajectory.segments)
    for place in range(len(segments) - 1):
        reply, after = segments[place : place + 2]
        if reply.kind is not SegmentKind.MODEL or after.kind is not SegmentKind.OBSERVATION:
            continue
        ids = (*reply.train_ids, after.train_ids[0])
        segments[place] = replace(
            reply,
            wire_ids=ids,
            train_ids=ids,
            loss_mask=(*reply.loss_mask, 1),
            logprobs=(*reply.logprobs, -1.0),
        )
        segments[place + 1] = replace(
            after,
            wire_ids=after.wire_ids[1:],
            train_ids=after.train_ids[1:],
            loss_mask=after.loss_mask[1:],
            logprobs=after.logprobs[1:],
        )
    return replace(trajectory, segments=tuple(segments))


def shared_trained(trajectory: Trajectory) -> Trajectory:
    """Return a fork that also trains what its parent sampled; others as they are."""
    if trajectory.origin is None:
        return trajectory
    return replace(trajectory, segments=tuple(map(_trained, trajectory.segments)), origin=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A mistake that the comparison must find."""

    name: str
    episodes: str
    """Name of the set in whose episodes it is made."""
    mistake: Callable[[Trajectory], Trajectory]


CONTROLS: Final = (
    *(
        Control(name=f"{name}{place}", episodes=episodes, mistake=mistake)
        for episodes, place in (("fault", ""), ("compaction", ", several rows"))
        for name, mistake in (
            ("fault trained as reward 0", fault_as_zero),
            ("mask of each reply shifted by one", mask_shifted),
            ("a token of each observation trained", observation_trained),
        )
    ),
    Control(name="forks train what they share", episodes="forks", mistake=shared_trained),
)


def _group(name: str, trajectories: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    return tuple(
        replace(one, group_id=name, episode_id=f"{name}{number}")
        for number, one in enumerate(trajectories)
    )


def _with_bonus(trajectory: Trajectory, bonus: float) -> Trajectory:
    """Return the episode with a higher reward for its last reply."""
    (*turns, last) = trajectory.turns
    segments = list(trajectory.segments)
    place = max(n for n, one in enumerate(segments) if one.kind is SegmentKind.MODEL)
    segments[place] = segments[place].with_reward((last.reward or 0.0) + bonus)
    return replace(
        trajectory,
        turns=(*turns, replace(last, reward=(last.reward or 0.0) + bonus)),
        segments=tuple(segments),
        reward=(trajectory.reward or 0.0) + bonus,
    )


def _trained(segment: Segment) -> Segment:
    if segment.kind is not SegmentKind.MODEL:
        return segment
    return replace(segment, loss_mask=(1,) * segment.token_count)
