"""What travels between the driver and its workers, and how it is packed.

Orders and answers are pickled here and reach Ray as bytes: its own pickler takes longer over many
small objects. One that cannot be pickled fails alone, not with the others of its call.
"""

import pickle
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError
from typing import Any, Final

import envkit
from envkit.errors import ConfigurationError, EnvkitError, describe
from envkit.rollout import EpisodeSpec, Limits, Player, Sampling
from envkit.rollout.sources import EnvSource
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory

MakePlayer = Callable[[], Player | Awaitable[Player]]
"""Makes a worker's player, on its event loop. The worker closes the player and its engine."""
Packed = EnvSource | bytes
"""What builds an environment, as it travels: pickled unless it is a registered one."""
Sent = tuple[str, bytes]
"""Name and pickle of an order."""
Parcel = tuple[str, bytes, list[Any]]
"""Name of an order, pickle of its answer, and large buffers, which Ray shares without a copy."""

_LARGE: Final = 1 << 16
"""Bytes of a buffer that is worth sharing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One attempt at an episode."""

    source: Packed
    spec: EpisodeSpec
    """Its episode id is of this attempt alone."""
    earlier: Trajectory | None
    """To resume; None plays from the start."""
    limits: Limits | None
    sampling: Sampling | None
    interrupt: str
    """Name of the caller's interrupt; `Worker.stop` fires it."""
    reason: StopReason | None
    """Why that has fired already; None if it has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of an order."""

    played: tuple[Trajectory, ...] = ()
    error: EnvkitError | None = None
    """Why the player refused it, or ends the run; None if it was played."""
    start: str | None = None
    """Hash that the group's next members must start with; None if it is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Which process answers."""

    version: str
    """Of its envkit."""
    host: str
    pid: int
    error: EnvkitError | None = None
    """Why it cannot play; None if it can."""


def packed(answer: Answer) -> tuple[bytes, list[Any]]:
    """Return an answer's pickle, and its large buffers apart from it."""
    buffers: list[Any] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as raw:
            if raw.nbytes < _LARGE:
                return True
        buffers.append(buffer)
        return False

    return pickle.dumps(answer, protocol=5, buffer_callback=is_small), buffers


def loaded(data: bytes, what: str) -> Any:  # noqa: ANN401  # what was pickled
    """Return what was pickled in another process.

    Raises:
        ConfigurationError: This process lacks a package that it needs.
    """
    try:
        return pickle.loads(data)
    except Exception as error:  # whatever a module's import raises
        raise ConfigurationError(
            f"the worker cannot load {what}: {describe(error)}. Install the package that it comes "
            "from on every node of the cluster, or name it in ray.runtime_env"
        ) from error


def version() -> str:
    """Return the version of this process's envkit; "unknown" for a source tree on its own."""
    try:
        return envkit.__version__
    except PackageNotFoundError:
        return "unknown"


def without_features(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory without the processor's tensors."""
    segments = tuple(
        replace(segment, features=()) if segment.features else segment
        for segment in trajectory.segments
    )
    return replace(trajectory, segments=segments)
