"""Reading of JSON that any client may have sent."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, cast

from envkit.errors import ConfigurationError
from envkit.tools import ToolSpec
from envkit_gateway.request import bad_request


def object_of(value: object, what: str) -> Mapping[str, Any]:
    """Return a JSON object.

    Raises:
        RequestRefused: It is something else.
    """
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be an object, got {value!r:.80}")
    return cast("Mapping[str, Any]", value)


def objects(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return a list of objects; empty if it is missing or null.

    Raises:
        RequestRefused: It is something else.
    """
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad_request(f"{name} must be a list, got {value!r:.80}")
    return [object_of(one, f"an entry of {name}") for one in cast("list[object]", value)]


def refuse_unknown(body: Mapping[str, Any], known: Set[str]) -> None:
    """Refuse fields that the gateway would otherwise drop in silence.

    Raises:
        RequestRefused: The body has one.
    """
    unknown = sorted(name for name, value in body.items() if name not in known and value)
    if unknown:
        raise bad_request(f"the gateway does not support {', '.join(unknown)}; leave it out")


def stop_strings(value: object) -> tuple[str, ...]:
    """Return stop strings given as one text, a list or nothing.

    Raises:
        RequestRefused: They are something else.
    """
    given = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(given, list):
        raise bad_request(f"stop must be a text or a list of texts, got {value!r:.80}")
    texts = cast("Sequence[object]", given)
    if not all(isinstance(one, str) and one for one in texts):
        raise bad_request(f"stop must hold texts that are not empty, got {value!r:.80}")
    return tuple(cast("Sequence[str]", texts))


def read_tool(function: Mapping[str, Any], *, schema: str = "parameters") -> ToolSpec:
    """Return a tool of a request.

    Args:
        function: Its name, description and schema.
        schema: The field with the schema.

    Raises:
        RequestRefused: It cannot be offered to a model.
    """
    parameters = function.get(schema) or {"type": "object", "properties": {}}
    try:
        return ToolSpec(
            name=str(function.get("name", "")),
            description=str(function.get("description") or ""),
            parameters=object_of(parameters, f"a tool's {schema}"),
        )
    except ConfigurationError as error:
        raise bad_request(str(error)) from error
