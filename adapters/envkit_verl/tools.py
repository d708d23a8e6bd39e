"""envkit's tools for verl's own `tool_agent` loop.

`function_tools` registers tools that are plain functions; `EnvkitTool` runs a tool of a stateful
environment. verl's loop has limits that `EnvAgentLoop` has not: it shortens tool text, gives one
reward for a trajectory, and turns a failed tool into text that is trained on
(verl 0.9.1, experimental/agent_loop/tool_agent_loop.py:450-518).
"""

import asyncio
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from envkit.env import Observation, StepKey
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.images import Image
from envkit.rollout import EnvSource, EpisodeRequest, RetryBudget
from envkit.rollout.host import EnvHost
from envkit.threads.pool import WorkerPool
from envkit.tools import ToolSpec
from envkit_verl.engine import pictures

_OVER = "The episode is over."


class ExactToolSchema(OpenAIFunctionToolSchema):
    """A schema that reaches the prompt whole.

    verl's own keeps type, description and enum of a property and drops the rest, so a list loses
    its items (verl 0.9.1, tools/schemas.py:21-36).
    """

    def model_dump(self, **options: Any) -> dict[str, Any]:  # noqa: ANN401  # pydantic's own
        """Return the tool's JSON schema as it was given."""
        del options
        return json.loads(self._text)

    _text: str = "{}"

    @classmethod
    def of(cls, spec: ToolSpec) -> "ExactToolSchema":
        """Return the schema of a tool."""
        whole = spec.to_json()
        reduced = json.loads(json.dumps(whole))
        parameters = reduced["function"]["parameters"]
        for entry in parameters.setdefault("properties", {}).values():
            entry.setdefault("type", "object")  # anyOf and the like: only verl's check reads this
        made = cls.model_validate(reduced)
        made._text = json.dumps(whole)
        return made


def function_tools(
    env_id: str, *, names: Sequence[str] | None = None, env_kwargs: Mapping[str, Any] | None = None
) -> list[str]:
    """Register an environment's function tools with verl and return their names.

    For the file that `multi_turn.function_tool_path` names; verl runs it in every worker::

        from envkit_verl import function_tools
        function_tools("search-v0")

    Args:
        env_id: A registered environment.
        names: Of the tools to take; None takes all.
        env_kwargs: Arguments of the environment, which is made once and stays open.

    Raises:
        ConfigurationError: A tool is a schema without a function; `EnvkitTool` runs those. Or
            verl is older than 0.8.0, which has no function tools.
        UnknownNameError: The environment has no tool of a name.
    """
    try:
        from verl.tools.function_tool import function_tool
    except ImportError as error:
        raise ConfigurationError(
            "function tools need verl 0.8.0 or later; use envkit_verl.EnvkitTool before"
        ) from error
    request = EpisodeRequest(env_id=env_id, env_kwargs=dict(env_kwargs or {}))
    specs = {spec.name: spec for spec in _tools_of(request.factory())}
    chosen = [_named(specs, name, env_id) for name in (list(specs) if names is None else names)]
    without = [spec.name for spec in chosen if spec.function is None]
    if without or not chosen:
        raise ConfigurationError(
            f"function tools need functions, and {env_id!r} has none for {without or 'any tool'}: "
            "its tools act on an episode; declare envkit_verl.EnvkitTool in a tool_config_path "
            "file, or play the environment with envkit_verl.EnvAgentLoop"
        )
    for spec in chosen:
        function_tool(spec.name, schema=ExactToolSchema.of(spec))(_checked(spec))
    return [spec.name for spec in chosen]


class EnvkitTool(BaseTool):
    """One tool of an environment.

    In the file of `multi_turn.tool_config_path`::

        tools:
          - class_name: envkit_verl.EnvkitTool
            config: {type: native, env_id: geo3k-v0, tool: zoom}

    A call becomes a reply that holds the call, which the environment steps on. Tools of one
    environment share its episode, which lasts as long as verl's trajectory; its task and seed are
    `tools_kwargs.<tool>.create_kwargs` of the row, as JSON keys of the column `envkit`. What
    `reset` shows is not sent: the dataset's prompt must show it.
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any = None) -> None:  # noqa: ANN401  # verl's type or None
        """Make the environment once, to read the tool's schema.

        Args:
            config: `env_id`, `tool`, and optionally `env_kwargs`; `type` is verl's.
            tool_schema: Instead of the environment's own; None takes that.

        Raises:
            ConfigurationError: A key is missing or unknown.
            UnknownNameError: The environment has no such tool.
        """
        unknown = sorted(set(config) - {"type", "env_id", "env_kwargs", "tool"})
        if unknown or not isinstance(config.get("env_id"), str) or "tool" not in config:
            raise ConfigurationError(
                "the config of EnvkitTool must have type, env_id and tool, and may have "
                f"env_kwargs, got {sorted(config)}"
            )
        self._default = EpisodeRequest(
            env_id=config["env_id"], env_kwargs=dict(config.get("env_kwargs") or {})
        )
        specs = {spec.name: spec for spec in _tools_of(self._default.factory())}
        self._spec = _named(specs, str(config["tool"]), self._default.env_id)
        self._requests: dict[str, EpisodeRequest] = {}
        super().__init__(config, tool_schema or ExactToolSchema.of(self._spec))

    async def create(
        self,
        instance_id: str | None = None,
        **kwargs: Any,  # noqa: ANN401  # verl's
    ) -> tuple[str, ToolResponse]:
        """Note what the row asks for; verl calls this before every single call."""
        name = instance_id or str(uuid4())
        asked: Mapping[str, Any] = kwargs.get("create_kwargs") or {}
        self._requests[name] = EpisodeRequest.from_column(
            {key: value for key, value in asked.items() if value is not None},
            default=self._default,
        )
        return name, ToolResponse()

    async def execute(
        self,
        instance_id: str,
        parameters: dict[str, Any],
        **kwargs: Any,  # noqa: ANN401  # verl's
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Run the call in the trajectory's episode; return answer, reward and no metrics.

        Raises:
            EnvFault: The environment failed; verl's loop shows it to the model as text.
        """
        request = self._requests.get(instance_id, self._default)
        session = _session(kwargs.get("agent_data"), request)
        return (*await session.step(self._spec.name, parameters), {})

    async def release(self, instance_id: str, **kwargs: Any) -> None:  # noqa: ANN401  # verl's
        """Forget the call; the episode lasts until verl drops its trajectory."""
        del kwargs
        self._requests.pop(instance_id, None)


@dataclass(slots=True)
class _Session:
    """An episode behind the calls of one trajectory."""

    request: EpisodeRequest
    host: EnvHost
    budget: RetryBudget = field(default_factory=RetryBudget)
    episode_id: str = field(default_factory=lambda: uuid4().hex)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    turn: int | None = None
    """None before the reset."""
    is_over: bool = False

    async def step(self, name: str, arguments: Mapping[str, Any]) -> tuple[ToolResponse, float]:
        async with self.lock:  # verl runs the calls of one reply at the same time
            if self.is_over:
                return ToolResponse(text=_OVER), 0.0
            if self.turn is None:
                await self._reset()
            call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
            key = StepKey(episode_id=self.episode_id, turn=self.turn or 0, attempt=0)
            outcome = await self.host.step(
                f"<tool_call>\n{call}\n</tool_call>", key=key, timeout_s=self.budget.step_timeout_s
            )
            step = outcome.step
            self.turn = (self.turn or 0) + 1
            self.is_over = step.terminated or step.truncated
            return _response(step.observation), step.reward

    async def _reset(self) -> None:
        timeout_s, task = self.budget.reset_timeout_s, self.request.task
        await self.host.ensure(timeout_s=timeout_s)
        await self.host.reset(
            seed=self.request.seed,
            task=None if task is None else dict(task),
            timeout_s=timeout_s,
        )
        self.turn = 0


_sessions: weakref.WeakKeyDictionary[Any, dict[EnvSource, _Session]] = weakref.WeakKeyDictionary()


def _session(agent_data: Any, request: EpisodeRequest) -> _Session:  # noqa: ANN401  # verl's AgentData
    """Return the episode of a trajectory, begun where there is none."""
    if agent_data is None:
        raise ConfigurationError(
            "EnvkitTool keeps its episode with verl's agent_data, which execute() was not given"
        )
    loop = asyncio.get_running_loop()
    known = _sessions.setdefault(agent_data, {})
    source = request.factory()
    if source not in known:
        pool = WorkerPool()
        host = EnvHost(pool, factory=source)
        known[source] = _Session(request=request, host=host)
        weakref.finalize(agent_data, _close_later, loop, host, pool)
    return known[source]


def _close_later(loop: asyncio.AbstractEventLoop, host: EnvHost, pool: WorkerPool) -> None:
    """Close the environment of a trajectory that is gone."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(partial(_start_close, loop, host, pool))


_closing: set[asyncio.Task[None]] = set()


def _start_close(loop: asyncio.AbstractEventLoop, host: EnvHost, pool: WorkerPool) -> None:
    async def close() -> None:
        await host.close()
        pool.close()

    task = loop.create_task(close())
    _closing.add(task)  # a loop keeps its tasks by weak references only
    task.add_done_callback(_closing.discard)


def _tools_of(source: EnvSource) -> tuple[ToolSpec, ...]:
    env = source()
    try:
        return tuple(getattr(env.unwrapped, "tools", ()))
    finally:
        env.close()


def _named(specs: Mapping[str, ToolSpec], name: str, env_id: str) -> ToolSpec:
    if name not in specs:
        raise UnknownNameError.suggest(f"tool of {env_id!r}", name, specs)
    return specs[name]


def _checked(spec: ToolSpec) -> Callable[..., Any]:
    """Return the tool's function as verl calls it: bad arguments become text for the model."""

    async def call(**arguments: Any) -> ToolResponse:  # noqa: ANN401  # the tool's own
        errors = spec.validate(arguments)
        if errors:
            return ToolResponse(text="; ".join(errors))
        if spec.is_async:
            return _answer(await spec(**arguments))
        return _answer(await asyncio.to_thread(spec, **arguments))

    return call


def _answer(value: Any) -> ToolResponse:  # noqa: ANN401  # whatever a tool returns
    if isinstance(value, Image):
        return ToolResponse(image=pictures([value]))
    if isinstance(value, str):
        return ToolResponse(text=value)
    return ToolResponse(text=json.dumps(value, ensure_ascii=False, default=str))


def _response(observation: Observation) -> ToolResponse:
    if not observation["images"]:
        return ToolResponse(text=observation["text"])
    return ToolResponse(text=observation["text"] or None, image=pictures(observation["images"]))
