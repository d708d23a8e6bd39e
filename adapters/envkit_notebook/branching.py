"""Change one reply of a recorded episode, and let an engine replay the rest.

The changed episode equals one aborted between a reply and its step, so the rollout's own `resume`
continues it. The recorded tokens stay as sampled, a replay restores the environment and compares
every outcome, and the usual loop plays on.
"""

from dataclasses import replace
from typing import Any, Final, cast

from envkit.env import Env
from envkit.errors import ConfigurationError, EnvFault
from envkit.messages import text_of
from envkit.rollout.engine import Engine, Sampling
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.rollout.limits import Limits, RetryBudget
from envkit.rollout.multi_agent import can_resume
from envkit.rollout.player import resume
from envkit.tokens import ChatCodec
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.stop import FaultPlace, StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit_notebook.game import before_reply, factory_for

EDITED: Final = "edited"
"""Key in a segment's extras: a person wrote its ids, and they are not trained on."""
BRANCH: Final = "branch"
"""Key in a branch's metadata: `{"of": episode_id, "turn": k}`."""


def check_branch(trajectory: Trajectory, turn: int) -> None:
    """Reject an episode that cannot be branched at a turn.

    Raises:
        ConfigurationError: No such turn, several agents, an agent's program, or no seed.
    """
    if not can_resume(trajectory):
        raise ConfigurationError(
            "a role's trajectory cannot be branched without its siblings, nor an agent's in the "
            "middle of its program: play the episode again"
        )
    if trajectory.seed is None:
        raise ConfigurationError("a trajectory without a seed cannot be played again")
    answered = sum(record.observation_hash is not None for record in trajectory.turns)
    replies = sum(entry["role"] == "assistant" for entry in trajectory.messages)
    last = min(answered, replies - 1)
    if not 0 <= turn <= last:
        raise ConfigurationError(
            f"turn must be a reply of the episode, 0 to {last}, got {turn}"
            if last >= 0
            else "this episode has no reply to change"
        )


def env_of(
    trajectory: Trajectory, env: str | AnyEnv | EnvFactory | None = None, **kwargs: object
) -> AnyEnv | EnvFactory:
    """Return the environment of a recorded episode, or a function that builds it.

    Args:
        trajectory: Names the environment.
        env: Replaces the id that it names.
        kwargs: Constructor arguments, such as max_turns.

    Raises:
        UnknownNameError: No environment has that id.
        ConfigurationError: Its system prompt differs from the recorded one; a returned function
            raises it when called.
    """
    made = factory_for(trajectory.env_id if env is None else env, **kwargs)
    if not callable(made):
        return _same_prompt(made, trajectory)
    return lambda: _same_prompt(made(), trajectory)


def _same_prompt(env: AnyEnv, trajectory: Trajectory) -> AnyEnv:
    first = trajectory.messages[0] if trajectory.messages else None
    recorded = text_of(first) if first is not None and first["role"] == "system" else None
    if cast("Env", env.unwrapped).system_prompt != recorded:
        raise ConfigurationError(
            f"{trajectory.env_id!r} has another system prompt than the recorded episode: make "
            "it with the same arguments, such as branch(..., max_turns=8)"
        )
    return env


def branch_point(trajectory: Trajectory, turn: int, reply_ids: tuple[int, ...]) -> Trajectory:
    """Return the episode truncated after a changed reply, before its step.

    Args:
        trajectory: The recorded episode.
        turn: Index of the reply to change.
        reply_ids: The new reply, including its stop token.

    Raises:
        ConfigurationError: As `check_branch`.
    """
    check_branch(trajectory, turn)
    edited = Segment(
        kind=SegmentKind.MODEL,
        turn=turn,
        wire_ids=reply_ids,
        train_ids=reply_ids,
        loss_mask=(0,) * len(reply_ids),
        finish_reason="stop",
        extras={EDITED: True},
    )
    before = [s for s in trajectory.segments if s.turn <= turn and not _is_reply(s, turn)]
    return replace(
        trajectory,
        episode_id=f"{trajectory.episode_id}-branch-{turn}",
        group_id=None,
        segments=(*before, edited),
        turns=trajectory.turns[:turn],
        messages=tuple(before_reply(trajectory.messages, turn)),
        reward=None,
        stop_reason=StopReason.ABORTED,
        fault=None,
        env_snapshot=None,
        metadata={**trajectory.metadata, BRANCH: {"of": trajectory.episode_id, "turn": turn}},
    )


async def rerun(
    trajectory: Trajectory,
    *,
    turn: int,
    reply: str,
    engine: Engine,
    codec: ChatCodec,
    env: str | AnyEnv | EnvFactory | None = None,
    limits: Limits | None = None,
    retries: RetryBudget | None = None,
    sampling: Sampling | None = None,
    **kwargs: Any,  # noqa: ANN401  # whatever the environment's constructor takes
) -> Trajectory:
    """Change one reply of a recorded episode and let an engine play the rest.

    The changed reply has mask 0 in the result, since no model sampled it.

    Args:
        trajectory: The recorded episode.
        turn: Index of the reply to change, from 0.
        reply: The new reply.
        engine: Samples the replies after it.
        codec: Codec of the model that the episode was recorded with.
        env: Instead of the environment that the trajectory names.
        limits: As for `envkit.rollout.play`.
        retries: As for `envkit.rollout.play`.
        sampling: As for `envkit.rollout.play`.
        kwargs: Constructor arguments of the environment.

    Raises:
        ConfigurationError: The episode cannot be branched there, or the codec or environment
            differs from the recorded one.
        EnvFault: The replay differed from the record.
    """
    check_branch(trajectory, turn)
    _check_codec(trajectory, codec)
    start = branch_point(trajectory, turn, codec.encode_reply(reply))
    branch = await resume(
        start,
        env_of(trajectory, env, **kwargs),
        engine,
        codec,
        limits=limits,
        retries=retries,
        sampling=sampling,
    )
    restoring = (FaultPlace.BUILD, FaultPlace.RESET, FaultPlace.SNAPSHOT)
    if branch.fault is not None and branch.fault.where in restoring:
        raise EnvFault(
            f"the recorded episode could not be played again up to turn {turn}: "
            f"{branch.fault.message}",
            retryable=False,
        )
    return branch


def _is_reply(segment: Segment, turn: int) -> bool:
    return segment.kind is SegmentKind.MODEL and segment.turn == turn


def _check_codec(trajectory: Trajectory, codec: ChatCodec) -> None:
    """Reject a codec that decodes the recorded replies differently."""
    for record in trajectory.turns:
        ids = tuple(
            token
            for segment in trajectory.segments
            if _is_reply(segment, record.turn)
            for token in segment.wire_ids
        )
        if ids and codec.decode(ids) != record.response_text:
            raise ConfigurationError(
                f"the codec reads the recorded tokens of turn {record.turn} as "
                f"{codec.decode(ids)[:60]!r} instead of {record.response_text[:60]!r}: load the "
                "codec of the model that the episode was recorded with"
            )
