"""Parquet files that verl's `RLHFDataset` loads and `EnvAgentLoop` plays.

What verl needs of a row (verl 0.9.1, utils/dataset/rl_dataset.py:386-411): `prompt`, although the
environment writes the prompt itself; `data_source` and `reward_model.ground_truth`, which
validation reads; `extra_info.index`; `agent_name`, which chooses the loop. What envkit needs is one
JSON column, so that nothing is lost in nested parquet types.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from envkit.env import Observation
from envkit.errors import ConfigurationError, MissingDependencyError, StorageError
from envkit.messages import text_of
from envkit.rollout import ENVKIT_COLUMN, EpisodeRequest
from envkit.rollout.host import AnyEnv
from envkit.seeds import derive_seed
from envkit.tasks import Task, TaskSource

AGENT_NAME: Final = "envkit"
"""The default of the column `agent_name`, and of `name` in the loop's YAML entry."""
_ANSWER_KEYS: Final = ("answer", "ground_truth", "label", "solution")
_MARKS: Final = ("<image>", "<video>", "<audio>")


def dataset_rows(
    requests: Iterable[EpisodeRequest],
    *,
    split: str = "train",
    data_source: str | None = None,
    agent_name: str = AGENT_NAME,
    with_prompts: bool = True,
) -> list[dict[str, Any]]:
    """Return one row for each request.

    Args:
        requests: What the samples are to play.
        split: Noted in `extra_info`; rows of different splits without seed draw different tasks.
        data_source: What verl groups validation metrics by; None takes the environment's id.
        agent_name: The loop's name in the YAML file.
        with_prompts: Reset each environment once and write its first text into `prompt`, for
            people and for verl's length filter; pictures are left out, and not counted there.
            False writes a fixed sentence.

    Raises:
        EnvkitError: An environment cannot be made or reset.
    """
    rows: list[dict[str, Any]] = []
    made: dict[object, AnyEnv] = {}
    try:
        for index, request in enumerate(requests):
            source = request.factory()
            if with_prompts and source not in made:
                made[source] = source()
            prompt = _prompt(made[source], request) if with_prompts else _no_prompt()
            rows.append({
                "data_source": data_source or request.env_id,
                "prompt": prompt,
                "reward_model": {"style": "envkit", "ground_truth": _ground_truth(request.task)},
                "extra_info": {"index": index, "split": split},
                "agent_name": agent_name,
                ENVKIT_COLUMN: request.to_column(),
            })  # fmt: skip
    finally:
        for env in made.values():
            env.close()
    return rows


def build_dataset(
    env_id: str,
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    tasks: Sequence[Task] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    split: str = "train",
    data_source: str | None = None,
    agent_name: str = AGENT_NAME,
    with_prompts: bool = True,
) -> int:
    """Write a parquet file of one environment's tasks and return its number of rows.

    Args:
        env_id: A registered environment.
        path: The file to write.
        size: Rows. None takes all tasks, of `tasks` or of the environment's own finite source.
        tasks: One for each row; None takes the environment's own. A finite source is taken in
            order, each task written out; an endless one is drawn by the row's seed.
        env_kwargs: Arguments of the environment.
        seed: Of the file; every row gets its own seed, derived from it.
        split: As for `dataset_rows`; it is part of every row's seed.
        data_source: As for `dataset_rows`.
        agent_name: As for `dataset_rows`.
        with_prompts: As for `dataset_rows`.

    Raises:
        ConfigurationError: The size is not positive, more than there are tasks, or not given for
            an endless source.
        MissingDependencyError: pyarrow is not installed.
        StorageError: The file cannot be written.
    """
    base = EpisodeRequest(env_id=env_id, env_kwargs=dict(env_kwargs or {}))
    given = _tasks(base, tasks, size)
    requests = [
        EpisodeRequest(
            env_id=env_id,
            env_kwargs=base.env_kwargs,
            task=task,
            seed=derive_seed("row", seed, split, index),
        )
        for index, task in enumerate(given)
    ]
    rows = dataset_rows(
        requests,
        split=split,
        data_source=data_source,
        agent_name=agent_name,
        with_prompts=with_prompts,
    )
    write_dataset(rows, path)
    return len(rows)


def write_dataset(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write rows as the parquet file that `data.train_files` or `data.val_files` names.

    Raises:
        ConfigurationError: There is no row, or the name does not end in .parquet, by which verl
            chooses its reader.
        MissingDependencyError: pyarrow is not installed.
        StorageError: The file cannot be written.
    """
    if not rows or Path(path).suffix != ".parquet":
        raise ConfigurationError(
            f"a dataset for verl needs rows and a name ending in .parquet, got {len(rows)} rows "
            f"for {str(path)!r}"
        )
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            "writing parquet files", "pyarrow", "parquet"
        ) from error
    try:
        parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows]), str(path))
    except OSError as error:
        raise StorageError(f"cannot write {str(path)!r}: {error}") from error


def _tasks(
    base: EpisodeRequest, tasks: Sequence[Task] | None, size: int | None
) -> list[Task | None]:
    if size is not None and size < 1:
        raise ConfigurationError(f"size must be at least 1, got {size}")
    if tasks is not None:
        found: list[Task | None] = list(tasks)
    else:
        env = base.factory()()
        try:
            source: TaskSource | None = getattr(env.unwrapped, "tasks", None)
            length = None if source is None else source.size
            if source is None or length is None:
                return [None] * _needed(size, base.env_id)
            wanted = length if size is None else min(size, length)
            found = [source.task(index) for index in range(wanted)]
        finally:
            env.close()
    if not found or (size is not None and len(found) < size):
        raise ConfigurationError(
            f"size must be at most the number of tasks, got {size} for {len(found)}"
        )
    return found[:size]


def _needed(size: int | None, env_id: str) -> int:
    if size is None:
        raise ConfigurationError(f"{env_id!r} has endless tasks: say how many rows, with size=")
    return size


def _prompt(env: AnyEnv, request: EpisodeRequest) -> list[dict[str, str]]:
    """Return the environment's first messages as text."""
    options = None if request.task is None else {"task": dict(request.task)}
    observation: Observation = env.reset(seed=request.seed, options=options)[0]
    unwrapped: Any = env.unwrapped
    messages = [{"role": "user", "content": text_of(unwrapped.format_observation(observation))}]
    if unwrapped.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": unwrapped.system_prompt})
    return [{**entry, "content": _plain(entry["content"])} for entry in messages]


def _no_prompt() -> list[dict[str, str]]:
    return [{"role": "user", "content": "The environment writes the prompt."}]


def _plain(text: str) -> str:
    """Return text without the marks that verl replaces by a row's pictures, which it has none of.

    A row with the mark and no picture would fail in verl's reader if another has pictures.
    """
    for mark in _MARKS:
        text = text.replace(mark, mark[1:-1])
    return text or "The environment writes the prompt."


def _ground_truth(task: Mapping[str, Any] | None) -> str:
    """Return the answer that a task states, for verl's validation tables; else an empty string."""
    for key in _ANSWER_KEYS:
        value = (task or {}).get(key)
        if isinstance(value, str | int | float):
            return str(value)
    return ""
