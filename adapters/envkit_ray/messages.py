"""Messages between the driver and its workers, and their serialisation.

Orders and answers are pickled here and passed to Ray as bytes: its own pickler is slower for many
small objects. One that cannot be pickled fails alone, not with the others of its call.
"""

import pickle
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from envkit.errors import ConfigurationError, EnvkitError, RunFailedError, describe, shown
from envkit.rollout.player import Player
from envkit.rollout.setup import EpisodeSpec
from envkit.rollout.sources import EnvSource
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit_ray.cluster import load_ray

MakePlayer = Callable[[], Player | Awaitable[Player]]
"""Makes a worker's player, on its event loop. The worker closes the player and its engine."""
Packed = EnvSource | bytes
"""A serialised environment source: pickled unless it is a registered one."""
Sent = tuple[str, bytes]
"""Name and pickle of an order."""
Parcel = tuple[str, bytes, list[Any]]
"""Name of an order, pickle of its answer, and large buffers, which Ray shares without a copy."""

_LARGE: Final = 1 << 16
"""Minimum bytes of a shared buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One attempt at an episode."""

    source: Packed
    spec: EpisodeSpec
    """Its episode id is unique to this attempt."""
    interrupt: str
    """Id of the caller's interrupt; `Worker.stop` fires it."""
    reason: StopReason | None
    """Why the interrupt has already fired; None if it has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of an order."""

    played: tuple[Trajectory, ...] = ()
    error: EnvkitError | None = None
    """Why the player rejected the order or ends the run; None if it was played."""
    snapshots: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """States of the environment, for forks; empty if the order asked for none."""
    start: str | None = None
    """Hash that the group's next members must start with; None if it is not known yet."""


def packed(answer: Answer) -> tuple[bytes, list[Any]]:
    """Return an answer's pickle, and its large buffers separately."""
    buffers: list[Any] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as raw:
            if raw.nbytes < _LARGE:
                return True
        buffers.append(buffer)
        return False

    return pickle.dumps(answer, protocol=5, buffer_callback=is_small), buffers


def pickled(value: object, what: str) -> bytes:
    """Return an object as bytes.

    Raises:
        ConfigurationError: It cannot be pickled.
    """
    try:
        return load_ray().cloudpickle.dumps(value)
    except Exception as error:  # the object's own code may raise anything
        raise ConfigurationError(
            f"{what} must be a function of a module, or functools.partial of one, so that it can "
            f"be sent to a worker, got {shown(value)}: {describe(error)}"
        ) from error


def loaded(data: bytes, what: str) -> Any:  # noqa: ANN401  # what was pickled
    """Return what was pickled in another process.

    Raises:
        ConfigurationError: This process lacks a package that it needs.
    """
    try:
        return pickle.loads(data)
    except Exception as error:  # a module's import may raise anything
        raise ConfigurationError(
            f"the worker cannot load {what}: {describe(error)}. Install its package on every node "
            "of the cluster, or list it in player_options.runtime_env"
        ) from error


def without_features(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory without the processor's tensors."""
    segments = tuple(
        segment.without_features() if segment.features else segment
        for segment in trajectory.segments
    )
    return replace(trajectory, segments=segments)


def accepted(spec: EpisodeSpec, answer: Answer, lost: int) -> tuple[Trajectory, ...]:
    """Return the records of an answer.

    Args:
        spec: The caller's spec, whose group start and snapshots are updated.
        answer: Answer of a worker, which knows only members that had finished.
        lost: Number of earlier attempts.

    Raises:
        EnvkitError: What the worker's player raised.
        EnvFault: The episode started from a different observation than its group.
    """
    if isinstance(answer.error, RunFailedError):
        raise RunFailedError(str(answer.error), answer.played)
    if answer.error is not None:
        raise answer.error
    if spec.snapshots is not None:
        spec.snapshots.update(answer.snapshots)
    start = spec.group_start
    if start is not None and answer.start is not None:
        start.compare(answer.start)
        start.expected = answer.start
    if not lost:
        return answer.played
    return tuple(replace(one, env_restarts=one.env_restarts + lost) for one in answer.played)
