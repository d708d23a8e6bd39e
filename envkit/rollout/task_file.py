"""Files that list the tasks of a run.

A line is either a task of the environment, or a dataset row with a request in the column `envkit`,
as written by `envkit export` and `envkit filter`. A request also sets the seed.
"""

import os
from dataclasses import replace
from typing import Final

from envkit.errors import ConfigurationError, DatasetError
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.secrets import stored
from envkit.tasks import read_tasks

_SHOWN: Final = 120


def read_requests(path: str | os.PathLike[str], env_id: str) -> tuple[EpisodeRequest, ...]:
    """Return the requests in a task file, all with the same arguments.

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
