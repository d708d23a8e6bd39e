"""envkit's function tools for verl's own `tool_agent` loop.

That loop has limits that `EnvAgentLoop` does not have: it truncates tool text, gives one reward per
trajectory, and turns a failed tool into text that is trained on (verl 0.9.1,
experimental/agent_loop/tool_agent_loop.py:450-518).
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.images import Image
from envkit.rollout.request import EpisodeRequest
from envkit.rollout.sources import EnvSource
from envkit.tools import ToolSpec
from envkit_verl.engine import pil_images


class ExactToolSchema(OpenAIFunctionToolSchema):
    """A schema that reaches the prompt unchanged.

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
            entry.setdefault("type", "object")  # anyOf etc.: only verl's check reads this
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
        names: Names of the tools; None means all.
        env_kwargs: Arguments of the environment, which is created once and stays open.

    Raises:
        ConfigurationError: A tool is a schema without a function, or verl is older than 0.8.0,
            which introduced function tools.
        UnknownNameError: The environment has no tool with a given name.
    """
    try:
        from verl.tools.function_tool import function_tool
    except ImportError as error:
        raise ConfigurationError(
            "function tools need verl 0.8.0 or later; play the environment with "
            "envkit_verl.EnvAgentLoop"
        ) from error
    request = EpisodeRequest(env_id=env_id, env_kwargs=dict(env_kwargs or {}))
    specs = {spec.name: spec for spec in _tools_of(request.factory())}
    chosen = [_named(specs, name, env_id) for name in (list(specs) if names is None else names)]
    without = [spec.name for spec in chosen if spec.function is None]
    if without or not chosen:
        raise ConfigurationError(
            f"function tools need functions, and {env_id!r} has none for {without or 'any tool'}: "
            "its tools act on an episode; play the environment with envkit_verl.EnvAgentLoop"
        )
    for spec in chosen:
        function_tool(spec.name, schema=ExactToolSchema.of(spec))(_checked(spec))
    return [spec.name for spec in chosen]


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
        return ToolResponse(image=pil_images([value]))
    if isinstance(value, str):
        return ToolResponse(text=value)
    return ToolResponse(text=json.dumps(value, ensure_ascii=False, default=str))
