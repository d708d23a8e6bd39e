"""Play an OpenEnv server as an environment."""

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from envkit import ranges
from envkit.access import bearer
from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Reset, Step, Turn
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.rollout.limits import Backoff
from envkit.rollout.setting_types import built
from envkit.seeds import derive_seed
from envkit.success import checked_threshold
from envkit.tasks import Task
from envkit.toolcalls import ToolCallFormat, parse_tool_calls
from envkit.tools import ToolSpec
from envkit_openenv.interface import (
    CalledTools,
    Interface,
    InterfaceKind,
    WholeReply,
    action_tool,
    check_field,
    choose_kind,
    mcp_tools,
)
from envkit_openenv.protocol import InvalidAction, StepAnswer, read_outcome
from envkit_openenv.results import Gathered, envkit_turn, show_outcome
from envkit_openenv.session import KEY_VARIABLE, Connection, SessionLimits, fetch_schema

_DEFAULT_TURNS: Final = 32
_SEEDS: Final = 2**31


class OpenEnvEnv(AsyncEnv):
    """Play the environment of an OpenEnv server, over one connection per episode.

    Task: sent along with the reset, as its parameters; `"prompt"` is not sent but shown first. With
        a server of an envkit environment, that environment's own task.
    Observation: the server's, as text and images.
    Action: depends on the server, see `InterfaceKind`.
    Reward: the server's; null is 0. Episode end: `done` terminates, or truncates if the observation
    has `"truncated": true`; `max_turns` replies truncate.
    Source: OpenEnv (openenv 0.10), https://github.com/huggingface/OpenEnv.
    """

    def __init__(
        self,
        *,
        base_url: str = "",
        interface: str = InterfaceKind.AUTO,
        reply_field: str | None = None,
        tool_name: str = "act",
        call_format: str = ToolCallFormat.AUTO,
        calls_per_turn: int = 1,
        image_fields: Sequence[str] = (),
        instructions: str | None = None,
        reset_arguments: Mapping[str, Any] | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        limits: SessionLimits | Mapping[str, Any] | None = None,
        is_repeatable: bool = False,
        max_sessions: int | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Describe the server; the first reset connects to it.

        Args:
            base_url: Address of the server, required: `http://` or `https://` (`ws://` and `wss://`
                do as well), without `/ws`.
            interface: An `InterfaceKind`.
            reply_field: The action field for the reply, for the interface "text".
            tool_name: Name of the tool of the interface "action".
            call_format: How calls are written, a `ToolCallFormat`.
            calls_per_turn: Maximum calls per reply; they are played in order.
            image_fields: Top-level fields of observations that are images; colour images and data
                URIs are detected automatically.
            instructions: The system prompt; None uses that of an envkit environment, else there is
                none.
            reset_arguments: Parameters of every reset; a task's own override them.
            key: Key of the server; None uses the variable ENVKIT_OPENENV_KEY, which run records
                never contain.
            headers: Headers of every connection.
            limits: Limits on time, size and attempts; None uses the defaults.
            is_repeatable: Promises that a seed, a task and the same actions give the same episode.
            max_sessions: Sessions available on the server; None is unlimited.
            max_turns: Replies before truncation; None uses that of an envkit environment, or 32.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: An argument is wrong.
        """
        turns = _DEFAULT_TURNS if max_turns is None else max_turns
        super().__init__(max_turns=turns, render_mode=render_mode)
        self._address = _address(base_url)
        ranges.one_of("interface", interface, InterfaceKind)
        if interface == InterfaceKind.TEXT and not reply_field:
            raise ConfigurationError("interface 'text' needs reply_field, a field of the action")
        ranges.at_least(1, calls_per_turn=calls_per_turn, max_sessions=max_sessions)
        ToolSpec(name=tool_name, description="")  # rejects an invalid name now
        parse_tool_calls("", call_format)  # rejects an unknown format now
        self._kind, self._reply_field = InterfaceKind(interface), reply_field
        self._tool_name, self._call_format = tool_name, call_format
        self._most, self._image_fields = calls_per_turn, tuple(image_fields)
        self._own_turns, self._instructions = max_turns, instructions
        self.system_prompt = instructions
        self._reset_arguments = dict(reset_arguments or {})
        self._headers = bearer(key or os.environ.get(KEY_VARIABLE), headers)
        self._limits = (
            limits
            if isinstance(limits, SessionLimits)
            else built(SessionLimits, limits or {}, "limits")
        )
        self.capabilities = Capabilities(  # pyright: ignore[reportAttributeAccessIssue]  # instances differ by their server
            replay_safe=is_repeatable,
            deterministic=is_repeatable,
            max_sessions=max_sessions,
        )
        self._schema: dict[str, Any] | None = None
        self._interface: Interface | None = None
        self._session: Connection | None = None
        self._seed = 0
        self._is_cut = False

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Reset:
        """Start an episode on its own connection; the arguments are those of `Env.reset`.

        Raises:
            EnvFault: The server cannot be reached, fails, or answers with something else.
        """
        task = self._prepare(seed, options)
        self._seed = int(self.np_random.integers(_SEEDS) if seed is None else seed)
        return self._begin(await self.on_areset(task))

    async def astep(self, action: str) -> Step:
        """Play one reply; truncation by the server truncates here too.

        Raises:
            EpisodeStateError: Before `areset`, or after the episode ended.
            EnvFault: The server failed; a step is never sent twice.
        """
        played = await super().astep(action)
        if self._is_cut and not played.terminated:
            self._running = False
            played = played._replace(truncated=True)
        if played.terminated or played.truncated:
            await self.aclose()
        return played

    async def on_areset(self, task: Task) -> Turn:
        """Open and reset a session, with retries within the limits."""
        await self.aclose()
        self._is_cut = False
        deadline = asyncio.get_running_loop().time() + self._limits.reset_timeout_s
        backoff, rng = Backoff(), random.Random(derive_seed("openenv", self._seed))
        for attempt in range(self._limits.open_attempts):
            try:
                return await self._open(task, deadline)
            except EnvFault as fault:
                await self.aclose()
                wait_s = backoff.delay(attempt, rng)
                is_late = asyncio.get_running_loop().time() + wait_s >= deadline
                is_last = attempt + 1 == self._limits.open_attempts
                if not fault.retryable or is_last or is_late:
                    raise
                await asyncio.sleep(wait_s)
            except BaseException as error:
                await self.aclose()
                if isinstance(error, InvalidAction):
                    raise self._refused(error) from error
                raise
        raise AssertionError("open_attempts is at least 1")

    async def on_aturn(self, response_text: str) -> Turn:
        """Send the reply's actions.

        Raises:
            EnvFault: The server failed, or an earlier failure lost the session.
        """
        if self._interface is None or self._session is None:
            raise EnvFault(
                f"the session with the OpenEnv server at {self._address} is over; reset starts "
                "another",
                kind=FaultKind.CRASHED,
            )
        reading = self._interface.read(self.reply)
        if self._kind is InterfaceKind.ENVKIT:
            try:
                outcome = await self._step(reading.actions[0])
            except InvalidAction as reason:
                raise self._refused(reason) from reason
            self._is_cut = outcome.observation.get("truncated") is True
            return envkit_turn(outcome)
        if reading.error is not None:
            info = {"parse_error": reading.error, "tool_call": reading.call, "tool_error": None}
            return Turn(f"Not understood, and nothing was done: {reading.error}.", info=info)
        return await self._play(reading.actions, reading.call)

    async def state(self) -> dict[str, Any]:
        """Return the server's state of the running session.

        Raises:
            EnvFault: There is no session, or it failed.
        """
        return await self._ask({"type": "state"}, self._limits.step_timeout_s)

    async def aclose(self) -> None:
        """End the session; safe to call twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_session": None}  # a connection cannot be copied

    async def _open(self, task: Task, deadline: float) -> Turn:
        """Connect, reset, and fetch the interface."""
        if self._schema is None:
            self._schema = await fetch_schema(
                self._address, limits=self._limits, headers=self._headers
            )
        schema: dict[str, Any] = self._schema["action"]
        kind = self._kind
        if kind is InterfaceKind.AUTO:
            kind = choose_kind(schema, self._reply_field)
        self._session = await Connection.open(
            self._address, limits=self._limits, headers=self._headers
        )
        left_s = max(0.001, deadline - asyncio.get_running_loop().time())
        data = await self._ask({"type": "reset", "data": self._parameters(task, kind)}, left_s)
        outcome = read_outcome(data)
        self._interface = await self._make_interface(kind, schema)
        self.tools, self._kind = self._interface.tools, kind
        self.grades_cut_replies = kind is InterfaceKind.ENVKIT  # its server says what was cut
        if kind is InterfaceKind.ENVKIT:
            await self._take_over()
            return envkit_turn(outcome)
        text, images, _ = show_outcome(outcome, image_fields=self._image_fields)
        prompt = task.get("prompt")
        parts = [prompt if isinstance(prompt, str) else "", text]
        return Turn("\n\n".join(filter(None, parts)), images=images, info={"tool_error": None})

    def _parameters(self, task: Task, kind: InterfaceKind) -> dict[str, Any]:
        """Return the parameters of a reset; the server ignores unknown ones."""
        base = {"seed": self._seed, **self._reset_arguments}
        if kind is InterfaceKind.ENVKIT:
            return {**base, "task": task} if task else base
        return {**base, **{key: value for key, value in task.items() if key != "prompt"}}

    async def _make_interface(self, kind: InterfaceKind, schema: dict[str, Any]) -> Interface:
        if kind is InterfaceKind.ENVKIT:
            return WholeReply("response_text", with_thoughts=True)
        if kind is InterfaceKind.TEXT:
            field = self._reply_field or ""
            check_field(schema, field)
            return WholeReply(field, with_thoughts=False)
        is_mcp = kind is InterfaceKind.TOOLS
        if is_mcp:
            listed = await self._step({"type": "list_tools"})
            tools = mcp_tools(listed.observation.get("tools"))
        else:
            tools = [action_tool(schema, name=self._tool_name)]
        return CalledTools(tools, is_mcp=is_mcp, call_format=self._call_format, most=self._most)

    async def _take_over(self) -> None:
        """Adopt the served environment's prompt, tools and last turn, but not its task."""
        state = await self.state()
        try:
            self.tools = tuple(ToolSpec.from_json(entry) for entry in state["tools"])
            if self._own_turns is None:
                self.max_turns = int(state["max_turns"])
            if self._instructions is None:
                self.system_prompt = state["system_prompt"]
            self.default_threshold = checked_threshold(state["reward_threshold"])
        except (KeyError, TypeError, ValueError) as error:
            raise EnvFault(
                f"the OpenEnv server must state an envkit environment: {error!r:.300}",
                kind=FaultKind.PERMANENT,
            ) from error

    async def _play(self, actions: Sequence[dict[str, Any]], call: dict[str, Any] | None) -> Turn:
        gathered = Gathered()
        error: str | None = None
        for action in actions:
            try:
                outcome = await self._step(action)
            except InvalidAction as reason:
                error = f"the environment refused the action: {reason}"
                gathered.texts.append(f"Not understood, and nothing was done: {error}.")
                break
            text, images, tool_error = show_outcome(outcome, image_fields=self._image_fields)
            gathered.add(text, images, outcome)
            gathered.tool_error = gathered.tool_error or tool_error
            if outcome.done:
                break
        self._is_cut = gathered.truncated
        return Turn(
            "\n\n".join(filter(None, gathered.texts)),
            images=gathered.images,
            role="tool" if self.tools and error is None else "user",
            reward=gathered.reward,
            done=gathered.done,
            info={
                "parse_error": error,
                "tool_call": call,
                "tool_error": gathered.tool_error,
                "reward_terms": {"env": gathered.reward},
            },
        )

    def _refused(self, reason: InvalidAction) -> EnvFault:
        return EnvFault(
            f"the OpenEnv server at {self._address} refused a message: {reason}",
            kind=FaultKind.PERMANENT,
        )

    async def _step(self, action: Mapping[str, Any]) -> StepAnswer:
        message = {"type": "step", "data": dict(action)}
        return read_outcome(await self._ask(message, self._limits.step_timeout_s))

    async def _ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a message to the session; drop a failed session."""
        session = self._session
        if session is None:
            raise EnvFault(
                f"there is no session with the OpenEnv server at {self._address}; reset starts one",
                kind=FaultKind.CRASHED,
            )
        try:
            return await session.ask(message, timeout_s=timeout_s)
        except EnvFault:
            self._session = None  # the session closed itself
            raise


def _address(base_url: object) -> str:
    """Return the HTTP address of a server.

    Raises:
        ConfigurationError: It is not a server's address.
    """
    text = base_url.strip().rstrip("/") if isinstance(base_url, str) else ""
    for prefix, plain in (("ws://", "http://"), ("wss://", "https://")):
        if text.startswith(prefix):
            text = plain + text.removeprefix(prefix).removesuffix("/ws")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(
            "openenv-v0 plays a server: base_url must be its address, such as "
            f"'http://127.0.0.1:8000', got {base_url!r:.120}"
        )
    if "@" in parts.netloc:
        raise ConfigurationError(
            "base_url must have no user and no password, because messages show it: give the "
            "password as key"
        )
    return text
