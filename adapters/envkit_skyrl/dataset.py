"""Datasets that SkyRL's `PromptDataset` reads: one row for each prompt.

SkyRL needs a column `prompt` (messages, which it only counts the tokens of when envkit plays) and
takes `env_class`; every other column reaches the generator as `env_extras`
(skyrl/train/dataset/dataset.py, 0.4.0).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from envkit.env import Env
from envkit.errors import ConfigurationError
from envkit.messages import text_of
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.seeds import derive_seed
from envkit.tasks import Task


def build_dataset(
    env_id: str,
    *,
    size: int | None = None,
    start: int = 0,
    tasks: Sequence[Task] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    env_class: str | None = None,
) -> list[dict[str, Any]]:
    """Return rows for a parquet or JSON lines file.

    The environment is built once and reset for each row, so that the prompt column shows what the
    model will read first, pictures left out.

    Args:
        env_id: As for `envkit.make`.
        size: How many rows; None takes every task, where their number is known.
        start: Index of the first task; keeps training and evaluation apart.
        tasks: Plays these; None takes the environment's own.
        env_kwargs: Arguments of the environment.
        seed: Of the rows' episodes; a row's own seed makes its group start from one state.
        env_class: The column of that name; None takes `env_id`.

    Raises:
        ConfigurationError: No row is asked for, more than there are tasks, or an endless source
            without `size`.
    """
    request = EpisodeRequest(env_id=env_id, env_kwargs=dict(env_kwargs or {}))
    outer = request.factory()()
    try:
        env = outer.unwrapped
        if not isinstance(env, Env):
            raise ConfigurationError(f"{env_id!r} must be an envkit.Env, got {type(env).__name__}")
        rows: list[dict[str, Any]] = []
        for index, task in _tasks(env, tasks, start=start, size=size):
            row_seed = derive_seed("dataset", seed, index)
            options = None if task is None else {"task": task}
            observation = outer.reset(seed=row_seed, options=options)[0]
            played = EpisodeRequest(
                env_id=env_id, env_kwargs=request.env_kwargs, task=dict(env.task) or None,
                seed=row_seed,
            )  # fmt: skip
            messages = [{"role": "user", "content": text_of(env.format_observation(observation))}]
            if env.system_prompt:
                messages.insert(0, {"role": "system", "content": env.system_prompt})
            rows.append(
                {
                    "prompt": messages,
                    "env_class": env_class or env_id,
                    ENVKIT_COLUMN: played.to_column(),
                }
            )
        return rows
    finally:
        outer.close()


def _tasks(
    env: Env, tasks: Sequence[Task] | None, *, start: int, size: int | None
) -> list[tuple[int, Task | None]]:
    """Return index and task of each row; a task of None is drawn with the row's seed."""
    if start < 0 or (size is not None and size < 1):
        raise ConfigurationError(
            f"start must be 0 or more and size at least 1, got {start} and {size}"
        )
    source = env.tasks
    known = len(tasks) if tasks is not None else None if source is None else source.size
    if known is None and size is None:
        raise ConfigurationError("this environment draws endless tasks: say size=...")
    if known is not None and start + (size or 1) > known:
        raise ConfigurationError(f"there are {known} tasks, got start={start} and size={size}")
    stop = start + size if size is not None else known
    indices = range(start, start if stop is None else stop)
    if tasks is not None:
        return [(index, tasks[index]) for index in indices]
    return [(index, None if source is None else source.task(index)) for index in indices]
