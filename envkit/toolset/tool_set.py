"""A set of tools and the limits of their calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, DatasetError, UnknownNameError
from envkit.ranges import at_least
from envkit.tools import ToolSpec

DEFAULT_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSet:
    """Tools and the limits of their calls."""

    specs: tuple[ToolSpec, ...]
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    """Timeout per call in seconds; None means no limit."""
    timeouts: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """Timeouts for individual tools by name, in seconds; they override `timeout_s`."""
    max_calls: int = 8
    """Maximum calls run per reply. The observation says how many were skipped."""
    is_sequential: bool = False
    """Whether the calls of a reply run one after another, for tools that share state. Otherwise
    they run concurrently."""
    max_characters: int = 20_000
    """Maximum characters per result. Longer text is truncated, with a note to the model."""

    def __post_init__(self) -> None:
        """Check names, schemas and limits now rather than at the first call.

        Raises:
            ConfigurationError: Two tools share a name, a tool has no function or an invalid schema,
                or a limit is out of range.
        """
        names = [spec.name for spec in self.specs]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"two tools are named {name!r}: rename one of them")
        for spec in self.specs:
            if spec.function is None:
                raise ConfigurationError(
                    f"tool {spec.name!r} has a schema but no function: build it with @envkit.tool"
                )
            spec.validate({})  # a schema that is not a JSON Schema raises here
        for name in self.timeouts:
            if name not in names:
                raise UnknownNameError.suggest("tool", name, names)
        for limit in (self.timeout_s, *self.timeouts.values()):
            if limit is not None and not limit > 0:
                raise ConfigurationError(f"a tool's timeout must be above 0 s, got {limit}")
        at_least(1, max_calls=self.max_calls, max_characters=self.max_characters)

    @classmethod
    def of(cls, tools: "ToolSet | Sequence[ToolSpec | Callable[..., Any]]") -> "ToolSet":
        """Build a set with default limits from tools or functions; return a set unchanged.

        Raises:
            ConfigurationError: A tool has the wrong type, or the set is invalid.
        """
        if isinstance(tools, ToolSet):
            return tools
        return cls(specs=tuple(_spec(tool) for tool in tools))

    def timeout_of(self, name: str) -> float | None:
        """Return the timeout of this tool's calls in seconds; None means no limit."""
        return self.timeouts.get(name, self.timeout_s)

    def resolve(self, definitions: object) -> "ToolSet":
        """Return the set that a task requests: its definitions with this set's functions.

        Args:
            definitions: A list of names or JSON schemas. The model sees the descriptions and
                parameters of a schema, and its arguments are validated against them.

        Raises:
            DatasetError: It is not a list, or a definition is invalid or refers to an unknown tool.
        """
        if not isinstance(definitions, list):
            raise DatasetError(
                "task['tools'] must be a list of tool names or JSON schemas, "
                f"got {type(definitions).__name__}"
            )
        functions = {spec.name: spec for spec in self.specs}
        chosen: list[ToolSpec] = []
        for definition in cast(list[object], definitions):
            try:
                wanted = _definition(definition, functions)
            except ConfigurationError as error:
                raise DatasetError(f"task['tools']: {error}") from error
            chosen.append(wanted)
        names = {spec.name for spec in chosen}
        kept = {name: limit for name, limit in self.timeouts.items() if name in names}
        try:
            return replace(self, specs=tuple(chosen), timeouts=kept)
        except ConfigurationError as error:
            raise DatasetError(f"task['tools']: {error}") from error


def _spec(tool: object) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    if callable(tool):
        return ToolSpec.from_function(tool)
    raise ConfigurationError(
        f"a tool must be a function or come from @envkit.tool, got {type(tool).__name__}"
    )


def _definition(definition: object, functions: Mapping[str, ToolSpec]) -> ToolSpec:
    if isinstance(definition, str):
        name, schema = definition, None
    elif isinstance(definition, Mapping):
        schema = ToolSpec.from_json(cast(Mapping[str, Any], definition))
        name = schema.name
    else:
        raise ConfigurationError(
            f"a definition must be a name or a JSON schema, got {type(definition).__name__}"
        )
    if name not in functions:
        raise UnknownNameError.suggest("tool", name, functions)
    known = functions[name]
    return known if schema is None else replace(schema, function=known.function)
