"""Write an environment's tools as methods, in the form that TRL reads.

TRL treats the public methods of a class as tools, and transformers reads their schemas from type
hints and Google docstrings (`get_json_schema`). This module writes a `ToolSpec`'s schema in that
form.
"""

import inspect
import keyword
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Optional, cast

from envkit.errors import ConfigurationError
from envkit.tools import ToolSpec

RESERVED: Final = frozenset({"reset", "get_reward"})
"""Names that TRL reserves."""
_HINTS: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def tool_method(spec: ToolSpec) -> Any:  # noqa: ANN401  # a function with a made-up signature
    """Return a method for a class that has `_call(name, arguments)`.

    Args:
        spec: The tool.

    Raises:
        ConfigurationError: The tool's name is not a valid public method name, or is reserved.
    """
    check_tool_name(spec.name)

    def method(self: Any, /, **arguments: Any) -> Any:  # noqa: ANN401
        return self._call(spec.name, arguments)

    properties = cast("Mapping[str, Mapping[str, Any]]", spec.parameters.get("properties", {}))
    required = cast("Sequence[str]", spec.parameters.get("required", ()))
    hints = {name: _hint(schema) for name, schema in properties.items()}
    # An argument without a default must not follow one with a default; all are passed by name.
    order = sorted(properties, key=lambda name: name not in required)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for name in order:
        default = inspect.Parameter.empty if name in required else properties[name].get("default")
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=default,
                annotation=hints[name],
            )
        )
    method.__name__ = spec.name
    method.__qualname__ = spec.name
    method.__doc__ = _docstring(spec, order, properties)
    method.__annotations__ = {name: hints[name] for name in order} | {"return": str}
    method.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]  # read by inspect
    return method


def check_tool_name(name: str) -> None:
    """Reject a name that TRL would not offer as a tool, or that it reserves.

    Raises:
        ConfigurationError: The name is not usable.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigurationError(
            f"TRL calls a tool as a public method, so its name must be a Python name without a "
            f"leading underscore, got {name!r}"
        )
    if name in RESERVED:
        raise ConfigurationError(
            f"TRL reserves the methods {sorted(RESERVED)}; rename the tool {name!r}"
        )


def _hint(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401  # a type hint
    choices = schema.get("enum")
    kind = schema.get("type")
    hint: Any = Any
    if choices:
        hint = Literal[tuple(choices)]
    elif isinstance(kind, str):
        hint = _HINTS.get(kind, Any)
        items = schema.get("items")
        if kind == "array" and isinstance(items, Mapping):
            inner: Any = _hint(cast("Mapping[str, Any]", items))
            hint = list[inner]
    return Optional[hint] if schema.get("nullable") is True else hint  # noqa: UP045  # a runtime hint


def _docstring(
    spec: ToolSpec, order: Sequence[str], properties: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return a Google docstring; each entry is one line, as TRL's parser expects."""
    lines = [_one_line(spec.description) or spec.name]
    if order:
        lines += ["", "Args:"]
        lines += [
            f"    {name}: {_one_line(str(properties[name].get('description', name)))}"
            for name in order
        ]
    return "\n".join([*lines, "", "Returns:", "    What the environment answers."])


def _one_line(text: str) -> str:
    return " ".join(text.split())
