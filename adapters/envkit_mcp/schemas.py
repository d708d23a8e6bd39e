"""A server's tools as `ToolSpec`s, or one clear error."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, EnvFault, FaultKind, did_you_mean
from envkit.tools import ToolSpec
from envkit_mcp.declaration import McpServer

_MAX_DESCRIPTION: Final = 4000
_DEEPEST: Final = 64
_VALUES: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are data and not schemas."""
_BY_NAME: Final = frozenset({"$defs", "definitions", "dependentSchemas", "properties"})
"""Keywords that map names to schemas."""
Caller = Callable[[str], Callable[..., Any]]
"""Returns the function of a tool, given the server's name of it."""


class _ServerSpec(ToolSpec):
    """A server's tool. Its patterns are shown to the model, but only the server runs them.

    A pattern can take forever on some text, and would stop the whole process meanwhile.
    """

    @cached_property
    def _validator(self) -> Any:  # noqa: ANN401  # jsonschema's
        parameters = _without_patterns(dict(self.parameters))
        return ToolSpec(name=self.name, description="", parameters=parameters)._validator

    def validate(self, arguments: object) -> list[str]:
        """Return problems as `ToolSpec.validate`; none if the schema refers to itself forever."""
        try:
            return super().validate(arguments)
        except RecursionError:
            return []


def specs_of(
    server: McpServer, listed: Sequence[Any], caller: Caller, *, most: int
) -> tuple[ToolSpec, ...]:
    """Return the tools that a server offers.

    Args:
        server: Its declaration, which may choose some.
        listed: Its tools, as the SDK read them.
        caller: Makes their functions.
        most: Maximum number of tools.

    Raises:
        EnvFault: Kind PERMANENT: too many tools, two of one name, a schema that is not valid, or a
            chosen tool that is missing. The message says how to leave a tool out.
    """
    chosen = _chosen(server, listed)
    if len(chosen) > most:
        raise _broken(
            server, f"may offer at most {most} tools, got {len(chosen)}: choose some with tools="
        )
    names = [str(tool.name) for tool in chosen]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _broken(server, f"has two tools named {twice[0]!r:.80}")
    return tuple(_spec(server, tool, caller) for tool in chosen)


def check_names(specs: Iterable[tuple[McpServer, ToolSpec]]) -> None:
    """Check that no two servers offer a tool of one name.

    Raises:
        EnvFault: Kind PERMANENT: two do.
    """
    owners: dict[str, str] = {}
    for server, spec in specs:
        if spec.name in owners:
            raise EnvFault(
                f"the MCP servers {owners[spec.name]!r} and {server.name!r} both have a tool named "
                f"{spec.name!r}: set prefix= of one, or choose its tools with tools=",
                kind=FaultKind.PERMANENT,
            )
        owners[spec.name] = server.name


def _chosen(server: McpServer, listed: Sequence[Any]) -> list[Any]:
    if server.tools is None:
        return list(listed)
    known = [str(tool.name) for tool in listed]
    for name in server.tools:
        if name not in known:
            hint = did_you_mean(name, known[:1000])
            raise _broken(server, f"has no tool {name!r}.{hint} It has {len(known)} others")
    return [tool for tool in listed if str(tool.name) in server.tools]


def _spec(server: McpServer, tool: Any, caller: Caller) -> ToolSpec:  # noqa: ANN401  # the SDK's Tool
    name = str(tool.name)
    try:
        parameters = dict(cast("Mapping[str, Any]", tool.input_schema))
        parameters.pop("$schema", None)
        _check_references(parameters, parameters, 0)
        spec = _ServerSpec(
            name=server.prefix + name,
            description=str(tool.description or tool.title or "")[:_MAX_DESCRIPTION],
            parameters=parameters,
            function=caller(name),
        )
        spec.validate({})  # a schema that is not a JSON Schema raises here
    except (ConfigurationError, TypeError, ValueError, RecursionError) as error:
        raise _broken(
            server, f"has a tool that cannot be used, {name!r:.80}: {error!s:.300}"
        ) from error
    return spec


def _without_patterns(schema: Any) -> Any:  # noqa: ANN401  # JSON data
    if isinstance(schema, list):
        return [_without_patterns(entry) for entry in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    fields = dict(cast("Mapping[str, Any]", schema))
    fields.pop("pattern", None)
    if "patternProperties" in fields:
        del fields["patternProperties"]
        fields |= {"additionalProperties": True, "unevaluatedProperties": True}
    for key, value in fields.items():
        if key in _BY_NAME and isinstance(value, Mapping):
            named = cast("Mapping[str, Any]", value)
            fields[key] = {name: _without_patterns(one) for name, one in named.items()}
        elif key not in _VALUES:
            fields[key] = _without_patterns(value)
    return fields


def _check_references(schema: Any, whole: Mapping[str, Any], depth: int) -> None:  # noqa: ANN401
    """Reject references that a validator cannot resolve; it would raise at a call."""
    if depth > _DEEPEST:
        raise ValueError(f"its schema must be at most {_DEEPEST} levels deep")
    if isinstance(schema, list):
        for entry in cast("list[Any]", schema):
            _check_references(entry, whole, depth + 1)
    if not isinstance(schema, Mapping):
        return
    for key, value in cast("Mapping[str, Any]", schema).items():
        if key in ("$ref", "$dynamicRef") and isinstance(value, str):
            _resolve(value, whole)
        _check_references(value, whole, depth + 1)


def _resolve(reference: str, whole: Mapping[str, Any]) -> None:
    found: Any = whole
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"a $ref must point into the schema itself, got {reference!r:.80}")
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdigit() and int(key) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = cast("Mapping[str, Any]", found)[key]
        else:
            raise ValueError(f"its $ref {reference!r:.80} points to nothing")


def _broken(server: McpServer, what: str) -> EnvFault:
    fix = "" if "tools=" in what else "; leave it out by listing the others in tools="
    return EnvFault(f"the MCP server {server.name!r} {what}{fix}", kind=FaultKind.PERMANENT)
