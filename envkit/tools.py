"""Tools that a model may call, described in JSON Schema.

A `ToolSpec` comes from a typed, documented Python function or from a JSON schema. jsonschema
validates a model's arguments. Problems are returned as sentences, because a bad call is data for
the next observation and never an exception.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol, cast, overload

from envkit.errors import ConfigurationError
from envkit.json_integers import JsonIntegers, has_whole_number
from envkit.json_schema import jsonschema
from envkit.signature import describe

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


class _Validator(Protocol):
    """The part of a jsonschema validator that is used here."""

    def iter_errors(self, instance: Any) -> Any: ...  # noqa: ANN401  # jsonschema's signature

    def is_valid(self, instance: Any) -> bool: ...  # noqa: ANN401  # as above

    def evolve(self, *, schema: Any) -> "_Validator": ...  # noqa: ANN401  # as above


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A callable tool as a model sees it; calling the spec calls its function."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(_NO_ARGUMENTS), hash=False)
    """JSON Schema of the arguments object. Unlisted arguments are errors, unless the schema sets
    `additionalProperties`."""
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    """The synchronous or asynchronous function; None for a schema alone. Lost when pickled."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"a tool name must have 1 to 64 of A-Z a-z 0-9 _ . : -, got {self.name!r}"
            )
        if self.parameters.get("type", "object") != "object":
            raise ConfigurationError(
                f"tool {self.name!r}: parameters must be a JSON schema of type 'object', "
                f"got type {self.parameters['type']!r}"
            )

    @classmethod
    def from_function(cls, function: Callable[..., Any], *, name: str | None = None) -> "ToolSpec":
        """Read the schema from type hints and a Google docstring.

        The conventions are those of transformers' `get_json_schema`: Literal and Enum become
        `enum`, Optional becomes `nullable`, a default makes an argument optional, and
        `(choices: [...])` at the end of a description becomes `enum`.

        Args:
            function: A function or a bound method, synchronous or asynchronous.
            name: Name of the tool; None uses the function's.

        Raises:
            ConfigurationError: A hint or a description is missing, or a type has no JSON form.
        """
        description, parameters = describe(function)
        return cls(
            name=name or function.__name__,
            description=description,
            parameters=parameters,
            function=function,
        )

    @classmethod
    def from_json(cls, schema: Mapping[str, Any]) -> "ToolSpec":
        """Build from the chat-completions form, or from its inner `function` object alone.

        Raises:
            ConfigurationError: The name is missing or a field has the wrong type.
        """
        inner: Any = schema.get("function", schema)
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):  # pyright: ignore[reportUnknownMemberType]  # foreign data
            raise ConfigurationError(
                "a tool schema must be {'type': 'function', 'function': {'name', 'description', "
                f"'parameters'}}}}, got {repr(schema)[:200]}"
            )
        known = cast(Mapping[str, Any], inner)
        parameters = known.get("parameters") or dict(_NO_ARGUMENTS)
        if not isinstance(parameters, Mapping):
            raise ConfigurationError(
                f"tool {known['name']!r}: parameters must be an object, "
                f"got {type(parameters).__name__}"
            )
        return cls(
            name=known["name"],
            description=str(known.get("description", "")),
            parameters=cast(Mapping[str, Any], parameters),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the chat-completions form that chat templates read."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": json.loads(json.dumps(dict(self.parameters))),
            },
        }

    @property
    def is_async(self) -> bool:
        """Whether calling the spec returns a coroutine."""
        return inspect.iscoroutinefunction(self.function)

    def validate(self, arguments: object) -> list[str]:
        """Return the problems of a call's arguments, one sentence each; empty if valid.

        Raises:
            ConfigurationError: The tool's own schema is not a valid JSON Schema.
        """
        if not isinstance(arguments, Mapping):
            return [f"arguments must be an object, got {type(arguments).__name__}"]
        errors = self._validator.iter_errors(dict(cast(Mapping[str, Any], arguments)))
        return sorted(_sentence(error) for error in errors)

    def with_integers(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments in which `3.0` is `3` where the schema takes only integers.

        JSON has one kind of number, so both are the same integer there, but not in Python.
        """
        try:
            if not has_whole_number(arguments):
                return arguments
            checker = self._validator
            integers = JsonIntegers(
                self.parameters,
                lambda rule, value: checker.evolve(schema=_with_null(rule)).is_valid(value),
            )
            return integers.read(arguments, self.parameters)
        except Exception:  # noqa: BLE001  # any schema; `validate` reports what is wrong with it
            return arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the function's own types
        """Call the function; an asynchronous one returns its coroutine.

        Named arguments are read as in `with_integers`.

        Raises:
            ConfigurationError: The spec was built from a schema and has no function.
        """
        if self.function is None:
            raise ConfigurationError(
                f"tool {self.name!r} has a schema but no function: build it with @envkit.tool"
            )
        return self.function(*args, **self.with_integers(kwargs))

    def __deepcopy__(self, memo: dict[int, object]) -> "ToolSpec":
        return self  # immutable, and a copy through __getstate__ would lose the function

    def __getstate__(self) -> dict[str, Any]:
        # The compiled validator and a decorated function cannot be pickled by name.
        kept = {key: self.__dict__[key] for key in ("name", "description", "parameters")}
        return {**kept, "function": None}

    @cached_property
    def _validator(self) -> _Validator:
        # Lazy: jsonschema is heavy, and most processes that list tools never validate a call.
        library = jsonschema()
        schema = {"additionalProperties": False, "type": "object", **self.parameters}
        try:
            library.Draft202012Validator.check_schema(schema)
        except library.exceptions.SchemaError as error:
            raise ConfigurationError(
                f"tool {self.name!r}: parameters must be a valid JSON Schema: {error.message}"
            ) from error
        return cast(_Validator, library.Draft202012Validator(_with_null(schema)))


@overload
def tool(function: Callable[..., Any], /) -> ToolSpec: ...
@overload
def tool(*, name: str) -> Callable[[Callable[..., Any]], ToolSpec]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> ToolSpec | Callable[[Callable[..., Any]], ToolSpec]:
    """Turn a typed, documented function into a `ToolSpec`: `@tool` or `@tool(name="...")`.

    Raises:
        ConfigurationError: As for `ToolSpec.from_function`; also for a method, because the
            decorator cannot know its instance.
    """

    def decorate(decorated: Callable[..., Any]) -> ToolSpec:
        if next(iter(inspect.signature(decorated).parameters), None) in ("self", "cls"):
            raise ConfigurationError(
                f"{decorated.__qualname__} is a method: pass the bound method to "
                "ToolSpec.from_function(instance.method) instead of decorating it"
            )
        return ToolSpec.from_function(decorated, name=name)

    return decorate if function is None else decorate(function)


def _with_null(schema: Any) -> Any:  # noqa: ANN401  # any JSON
    """Return the schema with `nullable` expanded, since JSON Schema has no such keyword."""
    if isinstance(schema, list):
        return [_with_null(entry) for entry in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: value if key in ("enum", "const", "default", "examples") else _with_null(value)
        for key, value in cast(dict[str, Any], schema).items()
    }
    if plain.get("nullable") is True:
        return {"anyOf": [plain, {"type": "null"}]}
    return plain


def _sentence(error: Any) -> str:  # noqa: ANN401  # jsonschema's untyped error
    where = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path
    )
    message: str = error.message
    if len(message) > 300:  # jsonschema quotes the whole offending value
        message = f"{message[:200]} ... {message[-80:]}"
    return f"arguments{where}: {message}"
