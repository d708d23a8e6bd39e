"""Fork a trajectory before a reply, to sample another reply from there."""

from dataclasses import replace

from envkit.errors import ConfigurationError
from envkit.trajectory.plain import detached
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.sequence import Origin
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory, TurnRecord


def fork_before(
    trajectory: Trajectory, turn: int, *, episode_id: str, env_snapshot: bytes | None = None
) -> Trajectory:
    """Return everything before a reply as an aborted episode that can be resumed.

    Token columns, images and processor outputs are shared with the parent, which still owns the
    tokens: in the fork they have mask 0. Dicts and lists that a caller could change are copied.

    Args:
        trajectory: The parent, with one agent and a ledger.
        turn: Index of the reply that the fork resamples, from 0.
        episode_id: Id of the fork.
        env_snapshot: State of the environment before that reply; None replays the earlier replies.

    Raises:
        ConfigurationError: There is no such turn, its reply did not go to the environment, or the
            trajectory has no ledger.
    """
    if not trajectory.has_ledger:
        raise ConfigurationError(
            f"episode {trajectory.episode_id} has no token ledger and cannot be forked"
        )
    cut = next(
        (
            index
            for index, segment in enumerate(trajectory.segments)
            if segment.kind is SegmentKind.MODEL and segment.turn == turn
        ),
        None,
    )
    if cut is None or not 0 <= turn < len(trajectory.turns):
        raise ConfigurationError(
            f"episode {trajectory.episode_id} can be forked before one of its "
            f"{len(trajectory.turns)} turns, counted from 0, got {turn}"
        )
    purpose = trajectory.turns[turn].purpose
    if purpose is not None:
        raise ConfigurationError(
            f"turn {turn} of episode {trajectory.episode_id} is a {purpose!r} of its history, "
            "which did not go to the environment; fork before another turn"
        )
    return replace(
        trajectory,
        episode_id=episode_id,
        reward=None,
        stop_reason=StopReason.ABORTED,
        fault=None,
        env_snapshot=env_snapshot,
        task=detached(trajectory.task),
        reset_info=detached(trajectory.reset_info),
        metadata=detached(trajectory.metadata),
        segments=tuple(_context(segment) for segment in trajectory.segments[:cut]),
        branches=tuple(
            replace(one, history=detached(one.history))
            for one in trajectory.branches
            if one.segment < cut
        ),
        origin=_origin(trajectory, cut, turn),
        turns=tuple(map(_own_turn, trajectory.turns[:turn])),
        messages=detached(trajectory.messages[: _message_of(trajectory, turn)]),
    )


def _context(segment: Segment) -> Segment:
    """Return a segment of the parent as context of a fork."""
    context = segment.as_context()
    return context.with_extras(detached(context.extras)) if context.extras else context


def _own_turn(turn: TurnRecord) -> TurnRecord:
    """Return a turn that shares no mutable data."""
    return replace(
        turn,
        info=detached(turn.info),
        tool_call=detached(turn.tool_call),
        env_retries=detached(turn.env_retries),
    )


def _origin(trajectory: Trajectory, cut: int, turn: int) -> Origin:
    """Return the origin: the trajectory that owns the last shared token, maybe the grandparent."""
    earlier = trajectory.origin
    is_inherited = earlier is not None and cut <= earlier.segments
    owner = earlier.episode_id if earlier is not None and is_inherited else trajectory.episode_id
    root = trajectory.episode_id if earlier is None else earlier.root
    return Origin(episode_id=owner, segments=cut, turns=turn, root=root)


def _message_of(trajectory: Trajectory, turn: int) -> int:
    """Return the index of a reply among the messages."""
    replies = [n for n, one in enumerate(trajectory.messages) if one["role"] == "assistant"]
    return replies[turn]
