"""How a model writes its actions: calls of the tool `act`, or `<action>` tags."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gymnasium import Space, spaces

from envkit import ranges
from envkit.errors import ConfigurationError
from envkit.reply import Reply
from envkit.toolcalls import ToolCall, ToolCallFormat, parse_tool_calls
from envkit.tools import ToolSpec
from envkit_gymnasium.sentences import describe_space
from envkit_gymnasium.values import (
    NoValue,
    check_playable,
    json_schema,
    plain_json,
    read_value,
    write_value,
)

TOOL: Final = "act"
_ARGUMENT: Final = "action"
_OPEN: Final = "<action>"
_CLOSE: Final = "</action>"
_LONGEST: Final = 20_000
"""Maximum characters of one action."""
_SHOWN: Final = 80


class ActionForm(StrEnum):
    """How an action is written in a reply."""

    TOOL = "tool"
    """A call of the tool `act` with the argument `action`."""
    TAGS = "tags"
    """Between `<action>` and `</action>`: a name, a number, JSON, or the text of a Text space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """The actions read from a reply."""

    values: tuple[Any, ...] = ()
    """Elements of the action space, in the reply's order."""
    call: dict[str, Any] | None = None
    """The first call, for `info["tool_call"]`."""
    error: str | None = None
    """Why the reply cannot be read; then none of it is played."""


class ActionReader:
    """Reads and writes the actions of one space."""

    def __init__(
        self,
        space: Space[Any],
        *,
        form: str,
        names: Sequence[str] = (),
        most: int = 1,
        call_format: str = ToolCallFormat.AUTO,
    ) -> None:
        """Describe the actions.

        Args:
            space: The action space.
            form: An `ActionForm`.
            names: Names of a Discrete space's values, in order; empty for none.
            most: Maximum actions per reply.
            call_format: How calls are written, a `ToolCallFormat`.

        Raises:
            ConfigurationError: The space has no written form, the names do not fit it, or a form is
                unknown.
        """
        check_playable(space)
        parse_tool_calls("", call_format)  # rejects an unknown format now
        self.space, self.names, self.most = space, tuple(names), most
        self._form = ActionForm(ranges.one_of("action_form", form, ActionForm))
        self._call_format = call_format
        self._numbers = _numbers_of(space, self.names)
        self.tools: tuple[ToolSpec, ...] = (self._tool(),) if self._form is ActionForm.TOOL else ()

    def read(self, reply: Reply) -> Actions:
        """Return the actions of a reply. Never raises for what a model writes."""
        if self._form is ActionForm.TOOL:
            return self._read_calls(reply)
        written = _between_tags(reply.final, self.most + 1)
        if not written:
            return Actions(error=f"there is no action between {_OPEN} and {_CLOSE}")
        return self._read_all([self._decoded(text) for text in written], None)

    def write(self, value: Any) -> str:  # noqa: ANN401  # an element of the space
        """Return the reply that plays an action."""
        written = self._named(value)
        if self._form is ActionForm.TOOL:
            call = {"name": TOOL, "arguments": {_ARGUMENT: written}}
            return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"
        return f"{_OPEN}{self.say(value)}{_CLOSE}"

    def say(self, value: Any) -> str:  # noqa: ANN401  # an element of the space
        """Return an action as its name or as JSON."""
        written = self._named(value)
        return written if isinstance(written, str) else json.dumps(written)

    def _named(self, value: Any) -> object:  # noqa: ANN401  # an element of the space
        written = write_value(self.space, value)
        named = [name for name, number in self._numbers.items() if number == written]
        return named[0] if named else written

    def describe(self) -> str:
        """Describe how to write an action, for the system prompt."""
        meaning = f"An action is {describe_space(self.space, self.names)}."
        many = f" Up to {self.most} actions in one reply are played in order." * (self.most > 1)
        if self._form is ActionForm.TOOL:
            return f"{meaning} Play it by calling the tool {TOOL}.{many}"
        written = "the text itself" if isinstance(self.space, spaces.Text) else "written as JSON"
        written = "by its name or number" if self.names else written
        return f"{meaning} Write it between {_OPEN} and {_CLOSE}, {written}.{many}"

    def _tool(self) -> ToolSpec:
        schema = (
            {"type": "string", "enum": list(self.names)} if self.names else json_schema(self.space)
        )
        meaning = describe_space(self.space, self.names)
        return ToolSpec(
            name=TOOL,
            description="Play an action.",
            parameters={
                "type": "object",
                "properties": {_ARGUMENT: {**schema, "description": f"The action: {meaning}."}},
                "required": [_ARGUMENT],
            },
        )

    def _read_calls(self, reply: Reply) -> Actions:
        parsed = parse_tool_calls(reply, self._call_format, tools=self.tools)
        call = _recorded(parsed.calls[0]) if parsed.calls else None
        if parsed.errors:
            return Actions(call=call, error=parsed.errors[0][: _SHOWN * 4])
        if not parsed.calls:
            return Actions(error=f"there is no call of the tool {TOOL}")
        values: list[Any] = []
        for each in parsed.calls[: self.most + 1]:
            if each.name != TOOL:
                error = f"there is no tool {each.name[:64]!r}; the tool is: {TOOL}"
                return Actions(call=call, error=error)
            if set(each.arguments) != {_ARGUMENT}:
                given = repr(sorted(each.arguments))[:_SHOWN]
                error = f"{TOOL} has one argument, {_ARGUMENT!r}, got {given}"
                return Actions(call=call, error=error)
            values.append(each.arguments[_ARGUMENT])
        return self._read_all(values, call)

    def _read_all(self, written: Sequence[object], call: dict[str, Any] | None) -> Actions:
        if len(written) > self.most:
            error = f"a reply may have at most {self.most} actions, got more"
            return Actions(call=call, error=error)
        try:
            return Actions(values=tuple(map(self._element, written)), call=call)
        except NoValue as reason:
            return Actions(call=call, error=f"this is not an action: {reason}")

    def _element(self, value: object) -> Any:  # noqa: ANN401  # the space's own type
        if isinstance(value, str) and self._numbers:
            key = value.strip().casefold()
            if key in self._numbers:
                return read_value(self.space, self._numbers[key])
            if not key.lstrip("+-").isdigit():
                names = ", ".join(self.names)
                raise NoValue(f"it must be one of {names}, got {value[:_SHOWN]!r}")
        if isinstance(value, str) and not isinstance(self.space, spaces.Text | spaces.Discrete):
            value = _parsed(value)  # formats without a schema write lists as strings
        return read_value(self.space, value)

    def _decoded(self, text: str) -> object:
        if isinstance(self.space, spaces.Text):
            return text
        return text.strip() if self._numbers else _parsed(text)


def _numbers_of(space: Space[Any], names: Sequence[str]) -> dict[str, int]:
    if not names:
        return {}
    if not isinstance(space, spaces.Discrete) or len(names) != int(space.n):
        count = f"{int(space.n)} names" if isinstance(space, spaces.Discrete) else "none"
        raise ConfigurationError(
            f"action_names must fit the action space {space}, which takes {count}, got {len(names)}"
        )
    numbers = {name.strip().casefold(): int(space.start) + n for n, name in enumerate(names)}
    digits = [name for name in numbers if not name or name.lstrip("+-").isdigit()]
    if len(numbers) < len(names) or digits:
        raise ConfigurationError(
            f"action_names must differ and not be numbers, got {list(names)!r:.200}"
        )
    return numbers


def _between_tags(body: str, most: int) -> list[str]:
    """Return the tagged texts; tags do not nest."""
    found: list[str] = []
    place = 0
    while len(found) < most:
        start = body.find(_OPEN, place)
        end = body.find(_CLOSE, start + len(_OPEN)) if start >= 0 else -1
        if end < 0:
            break
        found.append(body[start + len(_OPEN) : end])
        place = end + len(_CLOSE)
    return found


def _parsed(text: str) -> object:
    """Parse a text as JSON; text that is not valid JSON is returned unchanged."""
    try:
        return json.loads(text) if len(text) <= _LONGEST else text
    except (ValueError, RecursionError):
        return text


def _recorded(call: ToolCall) -> dict[str, Any]:
    """Return a call for info, with overlong arguments truncated."""
    record = call.to_json()
    try:
        written = json.dumps(plain_json(record["arguments"]), ensure_ascii=False)
        fits = len(written) <= _LONGEST
    except (TypeError, ValueError, RecursionError):
        written, fits = "", False
    if not fits:
        record["arguments"] = {"cut": written[:_SHOWN]}
    return {**record, "id": call.id[:64], "name": call.name[:64]}
