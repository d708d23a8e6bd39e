"""Wrap an environment of the verifiers library."""

import asyncio
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
from envkit.ranges import one_of
from envkit.tasks import Task
from envkit.toolcalls import ToolCallFormat, parse_tool_calls
from envkit_verifiers.episode import Asked, Ended, LibraryRollout
from envkit_verifiers.loading import library, load
from envkit_verifiers.messages import read_content, read_reply, read_tools, show, write_response

_DEFAULT_TURNS: Final = 32
_SPLITS: Final = ("train", "eval")
T = TypeVar("T")


class DatasetTasks:
    """The rows of an environment's dataset."""

    def __init__(self, rows: Any, name: str) -> None:  # noqa: ANN401  # a datasets.Dataset
        self._rows, self._name = rows, name

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def task(self, index: int) -> Task:
        """Return a row as JSON data.

        Raises:
            DatasetError: There is no such row, or it is not JSON data.
        """
        if not 0 <= index < self.size:
            raise DatasetError(
                f"the dataset of {self._name!r} has rows 0 to {self.size - 1}, got {index}"
            )
        row: Any = self._rows[index]
        try:
            return json.loads(json.dumps(row))
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"row {index} of the dataset of {self._name!r} must be JSON data, with images as "
                f"data URIs in the messages of 'prompt': {error}"
            ) from error


class VerifiersEnv(AsyncEnv):
    """Play an environment of verifiers: its dataset, its turns, its tools and its rubric.

    The library's own rollout runs on an event loop in a separate thread; the policy's reply
    replaces its model calls.

    Task: a row of the library's dataset, with `prompt` and the fields that its rubric reads.
    Observation: the messages that the environment adds, as text and images.
    Action: the reply; if the environment has tools, calls in it become the library's tool calls.
    Reward: the rubric's, on the turn that ends the episode; 0.0 on all others.
    Faults: a reward function that raises, which the library would score 0, is a grader fault if it
    raises for a policy that does nothing, too; an error that the library records on its rollout is
    a fault. Episode end: the library's stop conditions
    terminate, its turn limit truncates.
    Source: verifiers 0.1.14, https://github.com/PrimeIntellect-ai/verifiers.
    """

    def __init__(
        self,
        *,
        environment: str = "",
        arguments: Mapping[str, Any] | None = None,
        split: str = "train",
        call_format: str = ToolCallFormat.AUTO,
        max_turns: int | None = None,
        is_repeatable: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Load the environment and its dataset.

        Args:
            environment: A name for `verifiers.load_environment`; required.
            arguments: Arguments of the environment's own `load_environment`, as JSON data.
            split: Dataset that provides the tasks, "train" or "eval".
            call_format: How calls are written, a `ToolCallFormat`.
            max_turns: Replies before truncation if the environment has no limit; None uses the
                environment's, or 32.
            is_repeatable: Promises that a task and the same replies give the same episode.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: It cannot be loaded, has no dataset for the split, or scores the
                episodes of a group together.
            MissingDependencyError: verifiers is not installed.
        """
        if not environment:
            raise ConfigurationError(
                "verifiers-v0 needs environment=, a name for verifiers.load_environment"
            )
        one_of("split", split, _SPLITS)
        parse_tool_calls("", call_format)  # rejects an unknown format now
        turns = _DEFAULT_TURNS if max_turns is None else max_turns
        own = load(environment, arguments or {}, turns)
        limit = _limit_of(own)
        if max_turns is not None and limit is not None and max_turns != limit:
            raise ConfigurationError(
                f"{environment!r} itself ends after {limit} replies: omit max_turns, or "
                f"pass the environment's own argument in arguments=, got max_turns={max_turns}"
            )
        super().__init__(max_turns=limit or turns, render_mode=render_mode)
        rows: Any = own.build_dataset() if split == "train" else own.build_eval_dataset()
        if rows is None:
            other = _SPLITS[split == "train"]
            raise ConfigurationError(
                f"{environment!r} has no {split} dataset; pass split={other!r}"
            )
        self.tasks = DatasetTasks(rows, environment)
        self.tools = read_tools(own.tool_defs)
        self.capabilities = Capabilities(  # pyright: ignore[reportAttributeAccessIssue]  # instances differ
            replay_safe=is_repeatable, deterministic=is_repeatable
        )
        self._own, self._call_format = own, call_format
        self._episode: LibraryRollout | None = None
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
            DatasetError: The task has no prompt of user messages.
            EnvFault: The environment failed, or ended before it asked for a reply.
        """
        await self.aclose()
        self._is_cut = False
        if "prompt" not in task:
            raise DatasetError(
                f"a task of verifiers needs 'prompt', a list of messages, got keys {sorted(task)}"
            )
        self._episode = LibraryRollout(self._own, task)
        try:
            asked = await _in_background(self._episode.advance())
            if isinstance(asked, Ended):
                raise EnvFault(
                    f"the verifiers environment ended by {asked.stop!r} before any reply",
                    kind=FaultKind.PERMANENT,
                )
            self._check_tools(asked)
            self._said = asked.prompt
            return self._opening(asked)
        except BaseException:
            await self.aclose()
            raise

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
        if not opening or any(entry.role not in ("user", "text") for entry in opening):
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
                shown = show(self._added(found))
                return Turn(shown.text, images=shown.images, role=shown.role, info=info)
        except BaseException:
            await self.aclose()
            raise
        self._episode = None
        shown = show(found.last)
        info |= {"metrics": found.metrics, "reward_terms": found.terms, "stop": found.stop}
        info |= Grade(score=found.reward, failure=found.failure).info()
        self._is_cut = found.is_cut and self.max_turns > 1  # a request accepts one reply
        return Turn(
            shown.text,
            images=shown.images,
            role=shown.role,
            reward=found.reward,
            done=not self._is_cut,
            info=info,
        )

    async def aclose(self) -> None:
        """Cancel a running rollout; safe to call twice."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await _in_background(episode.stop())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_episode": None}  # a running rollout cannot be copied

    def _added(self, asked: Asked) -> list[Any]:
        """Return the messages after the reply.

        Raises:
            EnvFault: The environment changed earlier messages.
        """
        before = len(self._said)
        is_same = asked.prompt[:before] == self._said and len(asked.prompt) > before + 1
        if not is_same or asked.prompt[before].role != "assistant":
            raise EnvFault(
                "the verifiers environment must append to the conversation, and it "
                "rewrote earlier messages or requested something else",
                kind=FaultKind.PERMANENT,
            )
        self._check_tools(asked)
        self._said = asked.prompt
        return asked.prompt[before + 1 :]

    def _check_tools(self, asked: Asked) -> None:
        if read_tools(asked.tools) != self.tools:
            raise EnvFault(
                "the verifiers environment must offer the same tools for every task: "
                f"{[tool.name for tool in self.tools]}, got {[tool.name for tool in asked.tools]}",
                kind=FaultKind.PERMANENT,
            )


def _limit_of(own: Any) -> int | None:  # noqa: ANN401
    """Return the replies after which the library ends an episode; None if it has no limit."""
    limits = [one.max_turns for one in getattr(own, "envs", (own,))]
    return max(limits) if min(limits) > 0 else None


async def _in_background(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop; cancelling the wait cancels it.

    Reward functions and tools of verifiers are often synchronous and block the loop that calls
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
