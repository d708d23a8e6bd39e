"""Wrap an environment of the verifiers library."""

import asyncio
import copy
import itertools
import json
import os
import threading
from collections.abc import Coroutine, Mapping
from functools import cache
from typing import Any, Final, TypeVar

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Step, Turn
from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind
from envkit.grading import Grade
from envkit.tasks import Task
from envkit.toolcalls import ToolCallFormat, parse_tool_calls
from envkit_verifiers.episode import Asked, Ended, LibraryEpisode
from envkit_verifiers.loading import Loaded, library, load, tasks_of
from envkit_verifiers.messages import read_content, read_reply, read_tools, show, write_response
from envkit_verifiers.serving import serving

_DEFAULT_TURNS: Final = 32
_SHOWN: Final = 300
T = TypeVar("T")


class TasksetTasks:
    """The tasks of an environment; those of an endless one are made in order, and kept."""

    def __init__(self, loaded: Loaded) -> None:
        self._name = loaded.env.taskset.config.id
        self._waiting = tasks_of(loaded)
        self._rows: list[Task] = []
        self._lock = threading.Lock()
        if loaded.env.taskset.bounded:
            self._read(None)
        self.size: int | None = len(self._rows) if loaded.env.taskset.bounded else None

    def task(self, index: int) -> Task:
        """Return a task as JSON data.

        Raises:
            DatasetError: There is no such task, or it is not JSON data.
        """
        self._read(index + 1)
        if not 0 <= index < len(self._rows):
            raise DatasetError(
                f"the tasks of {self._name!r} are 0 to {len(self._rows) - 1}, got {index}"
            )
        return copy.deepcopy(self._rows[index])

    def _read(self, count: int | None) -> None:
        with self._lock:
            missing = None if count is None else max(0, count - len(self._rows))
            for task in itertools.islice(self._waiting, missing):
                self._rows.append(self._row_of(task.data))

    def _row_of(self, data: Any) -> Task:  # noqa: ANN401
        try:
            row: Task = data.model_dump(mode="json", exclude=_unsaid(data))
            json.dumps(row, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"task {len(self._rows)} of {self._name!r} must be JSON data, with images as data "
                f"URIs in the messages of 'prompt': {error}"
            ) from error
        return row


class VerifiersEnv(AsyncEnv):
    """Play an environment of verifiers: its tasks, its turns, its tools and its scoring.

    The library's own episode runs on an event loop in a separate thread; the policy's reply
    replaces the model calls of one of its agents.

    Task: the library's data of a task, with `prompt` and the fields that its scoring reads.
    Observation: the messages that the environment adds, as text and images.
    Action: the reply; if the environment has tools, calls in it become the library's tool calls.
    Reward: the sum of the task's weighted rewards, on the turn that ends the episode; 0.0 on all
    others.
    Faults: a scoring that raises is a grader fault if it raises for a policy that does nothing,
    too; another error that the library records is a fault. Episode end: the library's stop
    conditions terminate, its limits on turns and tokens truncate.
    Source: verifiers 0.4.0, https://github.com/PrimeIntellect-ai/verifiers.
    """

    def __init__(
        self,
        *,
        environment: str = "",
        arguments: Mapping[str, Any] | None = None,
        call_format: str = ToolCallFormat.AUTO,
        max_turns: int | None = None,
        is_repeatable: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Load the environment and its tasks.

        Args:
            environment: The library's name of a taskset, `--env.taskset.id`; required.
            arguments: The rest of the library's `[env]` block, as JSON data: settings of the tasks
                in `taskset`, of the policy's agent in `agent`.
            call_format: How calls are written, a `ToolCallFormat`.
            max_turns: Replies before truncation if the environment has no limit; None uses the
                environment's, or 32.
            is_repeatable: Promises that a task and the same replies give the same episode.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: It cannot be loaded, has no tasks, or needs several policies.
            MissingDependencyError: verifiers is not installed.
        """
        if not environment:
            raise ConfigurationError(
                "verifiers-v0 needs environment=, the library's name of a taskset"
            )
        parse_tool_calls("", call_format)  # rejects an unknown format now
        turns = _DEFAULT_TURNS if max_turns is None else max_turns
        loaded = load(environment, arguments or {}, turns)
        if max_turns is not None and max_turns != loaded.max_turns:
            raise ConfigurationError(
                f"{environment!r} itself ends after {loaded.max_turns} replies: omit max_turns, "
                "or set the agent's own max_turns in arguments=, got "
                f"max_turns={max_turns}"
            )
        super().__init__(max_turns=loaded.max_turns, render_mode=render_mode)
        self.tasks = TasksetTasks(loaded)
        if self.tasks.size == 0:
            raise ConfigurationError(f"{environment!r} must have at least one task, got none")
        self.capabilities = Capabilities(  # pyright: ignore[reportAttributeAccessIssue]  # instances differ
            replay_safe=is_repeatable, deterministic=is_repeatable
        )
        self._loaded, self._call_format = loaded, call_format
        self._episode: LibraryEpisode | None = None
        self._is_cut = False
        self._said: list[Any] = []
        """The conversation so far, in the library's form."""

    async def astep(self, action: str) -> Step:
        """Play one reply; an end by one of the library's limits truncates.

        Raises:
            EpisodeStateError: Before `areset`, or after the episode ended.
            EnvFault: The environment or its rubric failed.
        """
        played = await super().astep(action)
        if self._is_cut and not played.terminated:
            self._running = False
            played = played._replace(truncated=True)
        return played

    async def on_areset(self, task: Task) -> Turn:
        """Start the library's rollout.

        Raises:
            DatasetError: It is not a task of the environment, or its prompt has replies.
            EnvFault: The environment failed, or ended before it asked for a reply.
        """
        await self.aclose()
        self._is_cut = False
        try:
            self._loaded.task(task)
        except ValueError as error:
            raise DatasetError(
                f"this is not a task of {self._loaded.env.taskset.config.id!r}: "
                f"{str(error)[:_SHOWN]}, got keys {sorted(task)}"
            ) from error
        self._episode = LibraryEpisode(self._loaded, task)
        try:
            asked = await _in_background(self._first_request(self._episode))
            if isinstance(asked, Ended):
                raise EnvFault(
                    f"the verifiers environment ended by {asked.stop!r} before any reply",
                    kind=FaultKind.PERMANENT,
                )
            self.tools = read_tools(asked.tools)
            self._said = asked.prompt
            return self._opening(asked)
        except BaseException:
            await self.aclose()
            raise

    async def _first_request(self, episode: LibraryEpisode) -> Asked | Ended:
        await serving(self._loaded)
        return await episode.advance()

    def _opening(self, asked: Asked) -> Turn:
        """Return the first turn without its system prompt, which is stored.

        Raises:
            DatasetError: The prompt holds anything but a system message and user messages.
        """
        opening = list(asked.prompt)
        system: str | None = None
        if opening and opening[0].role == "system":
            system, images = read_content(opening.pop(0).content)
            if images:
                raise DatasetError("a system prompt must be text, got images")
        if not opening or any(entry.role != "user" for entry in opening):
            roles = [entry.role for entry in asked.prompt]
            raise DatasetError(
                "a prompt must be a system message and user messages; few-shot replies of an "
                f"assistant must be written into them, got the roles {roles}"
            )
        self.system_prompt = system
        shown = show(opening)
        return Turn(shown.text, images=shown.images, info={"metrics": {}})

    async def on_aturn(self, response_text: str) -> Turn:
        """Pass the reply to the library's rollout.

        Raises:
            EnvFault: The environment or its rubric failed.
        """
        if self._episode is None:
            raise EnvFault(
                "the rollout of the verifiers environment is over; reset starts another",
                kind=FaultKind.CRASHED,
            )
        parsed = read_reply(self.reply, self._call_format, self.tools)
        call = parsed.calls[0].to_json() if parsed.calls else None
        info: dict[str, Any] = {
            "tool_call": call,
            "parse_error": "; ".join(parsed.errors) or None,
            "metrics": {},
        }
        response = write_response(library(), self.reply, parsed, self.turn)
        try:
            found = await _in_background(self._episode.advance(response))
            if isinstance(found, Asked):
                shown = show(self._added(found, response.message))
                return Turn(shown.text, images=shown.images, role=shown.role, info=info)
        except BaseException:
            await self.aclose()
            raise
        self._episode = None
        info |= {"metrics": found.metrics, "reward_terms": found.terms, "stop": found.stop}
        info |= Grade(score=found.reward, failure=found.failure).info()
        self._is_cut = found.is_cut and self.max_turns > 1  # a request accepts one reply
        return Turn("", reward=found.reward, done=not self._is_cut, info=info)

    async def aclose(self) -> None:
        """Cancel a running rollout; safe to call twice."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await _in_background(episode.stop())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_episode": None}  # a running rollout cannot be copied

    def _added(self, asked: Asked, sent: Any) -> list[Any]:  # noqa: ANN401
        """Return the messages after the reply.

        Raises:
            EnvFault: The environment changed earlier messages, or the reply.
        """
        before = len(self._said)
        is_same = asked.prompt[:before] == self._said and len(asked.prompt) > before + 1
        if not is_same or asked.prompt[before].role != "assistant":
            raise EnvFault(
                "the verifiers environment must append to the conversation, and it "
                "rewrote earlier messages or requested something else",
                kind=FaultKind.PERMANENT,
            )
        echo = asked.prompt[before]
        if (echo.content or "", echo.tool_calls) != (sent.content or "", sent.tool_calls):
            raise EnvFault(
                "the verifiers environment must keep the policy's reply in the conversation, and "
                "it replaced it",
                kind=FaultKind.PERMANENT,
            )
        self._check_tools(asked)
        self._said = asked.prompt
        return asked.prompt[before + 1 :]

    def _check_tools(self, asked: Asked) -> None:
        if read_tools(asked.tools) != self.tools:
            raise EnvFault(
                "the verifiers environment must offer the same tools in a whole episode: "
                f"{[tool.name for tool in self.tools]}, got {[tool.name for tool in asked.tools]}",
                kind=FaultKind.PERMANENT,
            )


def _unsaid(data: Any) -> set[str]:  # noqa: ANN401
    """Return the fields that hold their defaults, such as limits that a task does not set."""
    fields = type(data).model_fields.items()
    return {
        name
        for name, field in fields
        if getattr(data, name)
        == field.get_default(call_default_factory=True, validated_data=data.__dict__)
    }


async def _in_background(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop; cancelling the wait cancels it.

    Reward functions and tools of verifiers may be synchronous and block the loop that calls
    them. One loop on its own thread runs them all: they block each other, never a rollout.
    """
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop(os.getpid())))


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Start the loop of a process: a forked process does not inherit threads."""
    del process
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="envkit-verifiers", daemon=True).start()
    return loop
