"""Requests in a trainer's dataset: which environment and which task a sample plays.

A request is one JSON column named `ENVKIT_COLUMN`, because trainers treat nested columns
differently.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, DatasetError
from envkit.rollout.sources import EnvSource, canonical_json
from envkit.secrets import stored
from envkit.seeds import checked_seed
from envkit.tasks import Task, read_tasks

ENVKIT_COLUMN: Final = "envkit"
"""The dataset column, or metadata key, that holds a request."""
_SHOWN: Final = 120
_KEYS: Final = frozenset({"env_id", "env_kwargs", "task", "seed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRequest:
    """One episode that a dataset row asks for."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    task: Task | None = None
    """None draws one with the seed."""
    seed: int | None = None
    """None lets the adapter derive one from the trainer's own index, equal across a group."""

    def __post_init__(self) -> None:
        """Check the seed.

        Raises:
            ConfigurationError: It is neither None nor an integer of at least 0.
        """
        if self.seed is not None:
            name = f"'seed' in column {ENVKIT_COLUMN!r}"
            object.__setattr__(self, "seed", checked_seed(self.seed, name))

    @classmethod
    def from_column(
        cls, value: object, *, default: "EpisodeRequest | None" = None
    ) -> "EpisodeRequest":
        """Read a request.

        Args:
            value: A mapping, its JSON text, or None if the row has no such column.
            default: Supplies what the row leaves out; without it the row must name an environment.

        Raises:
            ConfigurationError: The value is not a JSON object, has unknown keys, or names no
                environment.
        """
        data = _mapping(value)
        unknown = sorted(set(data) - _KEYS)
        if unknown:
            raise ConfigurationError(
                f"column {ENVKIT_COLUMN!r} may only have the keys {sorted(_KEYS)}, got {unknown}"
            )
        env_id = data.get("env_id", default.env_id if default else None)
        if not isinstance(env_id, str):
            raise ConfigurationError(
                f"no environment is named: set 'env_id' in the rollout's configuration or in "
                f"column {ENVKIT_COLUMN!r} of every row, got {env_id!r}"
            )
        base = default if default and default.env_id == env_id else cls(env_id=env_id)
        changes = {key: data[key] for key in _KEYS - {"env_id"} if data.get(key) is not None}
        _check_kinds(changes)
        return replace(base, **changes)

    def to_column(self) -> str:
        """Return the request as JSON text for `ENVKIT_COLUMN`.

        Raises:
            ConfigurationError: The arguments or the task are not JSON data.
        """
        data: dict[str, Any] = {"env_id": self.env_id}
        if self.env_kwargs:
            data["env_kwargs"] = dict(self.env_kwargs)
        if self.task is not None:
            data["task"] = self.task
        if self.seed is not None:
            data["seed"] = self.seed
        return canonical_json(data)

    def factory(self) -> EnvSource:
        """Return the environment's source; equal requests give equal, hashable sources."""
        return EnvSource(self.env_id, canonical_json(dict(self.env_kwargs)))


def read_requests(path: str | os.PathLike[str], env_id: str) -> tuple[EpisodeRequest, ...]:
    """Return the requests in a file that lists the tasks of a run, all with the same arguments.

    A line is either a task of the environment, or a dataset row with a request in the column
    `envkit`, as written by `envkit export` and `envkit filter`. A request also sets the seed.

    Args:
        path: A JSON lines file.
        env_id: The environment that plays them.

    Raises:
        DatasetError: The file cannot be read, has no tasks, or a line is not a JSON object or has
            a malformed request.
        ConfigurationError: A request is for another environment, or for other arguments than the
            first one.
    """
    source = read_tasks(path)
    default = EpisodeRequest(env_id=env_id)
    found: list[EpisodeRequest] = []
    for index in range(source.size or 0):
        row = source.task(index)
        where = f"{str(path)!r}, task {index + 1}"
        if ENVKIT_COLUMN not in row:
            found.append(replace(default, task=row))
            continue
        try:
            request = EpisodeRequest.from_column(row[ENVKIT_COLUMN], default=default)
        except ConfigurationError as error:
            raise DatasetError(f"{where}: {error}") from error
        if request.env_id != env_id:
            raise ConfigurationError(
                f"{where} must be a task of {env_id}, got a task of {request.env_id}"
            )
        found.append(request)
    for number, request in enumerate(found, start=1):
        if request.env_kwargs != found[0].env_kwargs:
            raise ConfigurationError(
                f"{str(path)!r}: all tasks of a run must have the same env_kwargs, got "
                f"{stored(found[0].env_kwargs)!s:.{_SHOWN}} for task 1 and "
                f"{stored(request.env_kwargs)!s:.{_SHOWN}} for task {number}; split the file"
            )
    return tuple(found)


def _mapping(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"column {ENVKIT_COLUMN!r} must be a JSON object, got {value!r:.80}: {error}"
            ) from error
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"column {ENVKIT_COLUMN!r} must be a JSON object, got {type(value).__name__}"
        )
    return dict(cast("Mapping[str, Any]", value))


def _check_kinds(data: Mapping[str, Any]) -> None:
    for key in ("env_kwargs", "task"):
        if key in data and not isinstance(data[key], Mapping):
            raise ConfigurationError(
                f"{key!r} in column {ENVKIT_COLUMN!r} must be a JSON object, got {data[key]!r:.80}"
            )
