"""Hugging Face datasets of an environment's tasks for TRL's trainers.

A row has the columns "prompt", because TRL needs one, and "envkit", an `EpisodeRequest` as JSON.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.messages import Message, message, text_of
from envkit.ranges import one_of
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.seeds import checked_seed, derive_seed
from envkit_exchange import TaskDraw

if TYPE_CHECKING:
    from datasets import Dataset


class PromptStyle(StrEnum):
    """Content of the column "prompt"."""

    REQUEST = "request"
    """The request itself, which is unique; the environment writes the real prompt."""
    OPENING = "opening"
    """The first observation, without images, for people who read TRL's tables. Every row gets a
    seed, so that the episode starts with this text."""
    TOOLS = "tools"
    """The system prompt and an empty user message, which `reset` completes, for TRL's own tool loop
    (`environment_factory`)."""


def task_dataset(
    env_id: str,
    *,
    count: int | None = None,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    style: PromptStyle | str = PromptStyle.REQUEST,
) -> "Dataset":
    """Return an environment's tasks as a dataset, the same tasks as `envkit export` writes.

    Args:
        env_id: A registered environment.
        count: Number of tasks; None uses all of a finite source.
        seed: Seed of the rows' seeds, and of the tasks of an endless source.
        env_kwargs: Arguments of the environment.
        style: Content of the column "prompt".

    Raises:
        ConfigurationError: No count for endless tasks, a count above the number of tasks, or an
            unknown style.
        UnknownNameError: There is no such environment.
        MissingDependencyError: `datasets` is not installed.
    """
    with TaskDraw(env_id, count=count, seed=seed, env_kwargs=env_kwargs) as draw:
        return request_dataset(draw.requests(), style=style)


def request_dataset(
    requests: Iterable[EpisodeRequest],
    *,
    style: PromptStyle | str = PromptStyle.REQUEST,
    seed: int = 0,
) -> "Dataset":
    """Return requests as a dataset.

    Args:
        requests: One per row.
        style: Content of the column "prompt".
        seed: Source of seeds for requests without one, in the style OPENING.

    Raises:
        ConfigurationError: The style is unknown, or there is no request.
        MissingDependencyError: `datasets` is not installed.
    """
    one_of("style", style, PromptStyle)
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingDependencyError.for_extra("a dataset for TRL", "datasets", "trl") from error
    writer = _PromptWriter(PromptStyle(style), seed)
    prompts: list[list[dict[str, str]]] = []
    column: list[str] = []
    try:
        for request in requests:
            written, prompt = writer.write(request)
            column.append(written.to_column())
            prompts.append(prompt)
    finally:
        writer.close()
    if not prompts:
        raise ConfigurationError("a dataset needs at least one request, got none")
    return Dataset.from_dict({"prompt": prompts, ENVKIT_COLUMN: column})


class _PromptWriter:
    """Writes the column "prompt"; keeps one environment per distinct request."""

    def __init__(self, style: PromptStyle, seed: int) -> None:
        self._style = style
        self._seed = checked_seed(seed)
        self._envs: dict[object, Any] = {}
        self._count = 0

    def write(self, request: EpisodeRequest) -> tuple[EpisodeRequest, list[dict[str, str]]]:
        """Return the request to play, and its prompt."""
        self._count += 1
        if self._style is PromptStyle.REQUEST:
            return request, [_plain(message("user", request.to_column()))]
        env = self._env(request)
        if self._style is PromptStyle.TOOLS:
            return request, [*_system(env), _plain(message("user", ""))]
        seed = request.seed
        if seed is None:
            seed = derive_seed("opening", self._seed, self._count)
        played = EpisodeRequest(
            env_id=request.env_id, env_kwargs=request.env_kwargs, task=request.task, seed=seed
        )
        options = None if request.task is None else {"task": request.task}
        observation, _ = env.reset(seed=seed, options=options)
        opening: Message = env.unwrapped.format_observation(observation)
        return played, [*_system(env), _plain(opening)]  # a reset may change the system prompt

    def _env(self, request: EpisodeRequest) -> Any:  # noqa: ANN401
        source = request.factory()
        if source not in self._envs:
            self._envs[source] = source()
        return self._envs[source]

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()


def _system(env: Any) -> list[dict[str, str]]:  # noqa: ANN401  # any wrapper
    system: str | None = env.unwrapped.system_prompt
    return [] if system is None else [_plain(message("system", system))]


def _plain(entry: Message) -> dict[str, str]:
    return {"role": entry["role"], "content": text_of(entry)}
