"""Tasks of an environment drawn for a dataset: seeded, and reset once for their prompts."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from envkit import ranges
from envkit.closing import Closing
from envkit.env import Env
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.messages import Message, message
from envkit.registration import make
from envkit.rollout.request import EpisodeRequest
from envkit.secrets import without_secrets
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import Task
from envkit_exchange.tables import GROUP_BYTES, arrow, image_column, write_folder, write_table
from envkit_exchange.task_rows import ROW_BUILDERS, TaskExample, TaskFormat, parts_column

_DEFAULT_SPLIT: Final = "train"


class TaskDraw(Closing):
    """Draws tasks in order. A context manager, because it owns an environment.

    A finite task source is read in order, each task once. An endless one is drawn with a seed per
    row that depends on the split, so files of different splits share no seed. Each row stores its
    task and seed, so all members of a group start from the same state.
    """

    def __init__(
        self,
        env_id: str,
        *,
        count: int | None = None,
        start: int | None = None,
        seed: int = 0,
        split: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        tasks: Sequence[EpisodeRequest] | None = None,
    ) -> None:
        """Make the environment and count its tasks.

        Args:
            env_id: A registered environment.
            count: Number of rows; None means every task of a finite source.
            start: Index of the first task or row; None is 0.
            seed: Seed of the file.
            split: Recorded in the rows, and passed to an environment that takes an argument
                `split`. None records "train" and passes nothing.
            env_kwargs: Constructor arguments of the environment.
            tasks: Tasks to use instead of the environment's own, such as those of `read_requests`.
                Their arguments apply unless `env_kwargs` overrides them. None uses the
                environment's.

        Raises:
            ConfigurationError: An endless source has no count, there are more rows than tasks, or
                the environment cannot split its finite source.
        """
        shared = tasks[0].env_kwargs if tasks else None
        self._arguments = {**(shared or {}), **(env_kwargs or {})}
        self._env_id, self._seed, self._start = env_id, checked_seed(seed), start or 0
        self.split: Final = split or _DEFAULT_SPLIT
        self._env = _made(env_id, self._arguments)
        try:
            takes_split = "split" in inspect.signature(type(self._env)).parameters
            if split is not None and takes_split and "split" not in self._arguments:
                self._arguments["split"] = split
                self._env.close()
                self._env = _made(env_id, self._arguments)
            self._tasks = tasks
            own = self._env.tasks
            self._size = len(tasks) if tasks else None if own is None else own.size
            self.count: Final = self._counted(count)
            """Number of rows."""
            is_undivided = tasks is None and not takes_split and self._size is not None
            if split is not None and is_undivided and start is None:
                raise ConfigurationError(
                    f"{env_id} has {self._size} tasks and takes no argument 'split', so every "
                    "split would contain the same ones; cut them with --start and -n"
                )
        except BaseException:
            self._env.close()
            raise

    def _counted(self, count: int | None) -> int:
        size = self._size
        ranges.at_least(0, start=self._start)
        ranges.at_least(1, count=count)
        if size is None:
            if count is None:
                raise ConfigurationError(
                    f"{self._env_id} has endless tasks: set the number with --rows"
                )
            return count
        rows = size - self._start if count is None else count
        if rows < 1 or self._start + rows > size:
            raise ConfigurationError(
                f"{self._env_id} has {size} tasks, got a request for {rows} "
                f"starting at task {self._start}"
            )
        return rows

    def __iter__(self) -> Iterator[TaskExample]:
        """Yield the examples; a second iteration yields the same ones."""
        for index in range(self._start, self._start + self.count):
            yield self._example(index)

    def requests(self) -> Iterator[EpisodeRequest]:
        """Yield the episodes without a reset; endless tasks are determined by their seeds."""
        for index in range(self._start, self._start + self.count):
            yield self._request(index)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _request(self, index: int) -> EpisodeRequest:
        task: Task | None = None
        seed: int | None = None
        if self._tasks:
            task, seed = self._tasks[index].task, self._tasks[index].seed
        elif self._size is not None and self._env.tasks is not None:
            task = self._env.tasks.task(index)
        return EpisodeRequest(
            env_id=self._env_id,
            env_kwargs=without_secrets(self._arguments),
            task=task,
            seed=derive_seed("dataset", self._seed, self.split, index) if seed is None else seed,
        )

    def _example(self, index: int) -> TaskExample:
        env, request = self._env, self._request(index)
        options = None if request.task is None else {"task": request.task}
        reset = env.reset(seed=request.seed, options=options)
        messages: list[Message] = [env.format_observation(reset.observation)]
        if env.system_prompt:
            messages.insert(0, message("system", env.system_prompt))
        request = replace(request, task=request.task or dict(env.task) or None)
        return TaskExample(index=index, split=self.split, request=request, messages=tuple(messages))


def export_tasks(
    draw: TaskDraw,
    target: Path,
    kind: TaskFormat,
    *,
    with_images: bool = False,
    group_bytes: int = GROUP_BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write tasks as a dataset and return its number of rows.

    Args:
        draw: Draws the tasks.
        target: A .parquet or .jsonl file; for HF a folder.
        kind: The loader that reads it.
        with_images: Whether to write the images of the first observation.
        group_bytes: As for `export_trajectories`.
        progress: Called with the number of rows written so far and the total.

    Raises:
        StorageError: It cannot be written.
        MissingDependencyError: pyarrow is not installed.
    """
    is_table = kind is TaskFormat.HF or target.suffix == ".parquet"
    as_text = kind in (TaskFormat.SLIME, TaskFormat.MILES)
    schema: dict[str, Any] | None = None
    if with_images and is_table:
        is_skyrl = kind is TaskFormat.SKYRL
        schema = parts_column(arrow()) if is_skyrl else image_column(as_text=as_text)
    rows = _rows(draw, kind, with_images, progress)
    if kind is TaskFormat.HF:
        return write_folder(rows, target, schema, split=draw.split, group_bytes=group_bytes)
    return write_table(rows, target, schema, group_bytes=group_bytes)


def _rows(
    draw: TaskDraw,
    kind: TaskFormat,
    with_images: bool,
    progress: Callable[[int, int], None],
) -> Iterator[dict[str, Any]]:
    build = ROW_BUILDERS[kind]
    for done, example in enumerate(draw, start=1):
        yield build(example, with_images=with_images)
        progress(done, draw.count)


def _made(env_id: str, arguments: Mapping[str, Any]) -> Env:
    try:
        return cast(Env, make(env_id, **arguments).unwrapped)
    except UnknownNameError as error:
        if not Path(env_id).exists():
            raise
        raise ConfigurationError(
            f"{env_id!r} is a stored run, and this format takes an environment's tasks; export the "
            "run with the format sft, parquet, hf or inspect"
        ) from error
