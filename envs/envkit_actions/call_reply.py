"""Families that act by JSON: tool calls, or bare objects."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, cast

from envkit.reply import Reply
from envkit_actions.action import Action
from envkit_actions.closing import closing_of, closing_text
from envkit_actions.family import ActionFamily, Part
from envkit_actions.malformed import MalformedActionError, quoted
from envkit_actions.parsed import ParsedActions, Reading
from envkit_actions.reply import (
    CALL_CLOSE,
    CALL_OPEN,
    Call,
    calls_of,
    find_payloads,
    is_prose,
    split_reply,
)
from envkit_actions.spaces import CoordinateSpace
from envkit_actions.writing import Writing


class CallFamily(ActionFamily):
    """A family that acts by JSON."""

    tool_names: Sequence[str]
    """Names that a call may carry, at least one."""
    ends_in_text: ClassVar[bool] = True
    """Whether a reply without any JSON ends the episode."""

    def parse(self, reply: Reply | str, space: CoordinateSpace) -> ParsedActions:
        """Read tool calls, forms of the family's API and bare arguments, in order."""
        reading = Reading(space)
        try:
            body = split_reply(reply, ())
        except MalformedActionError as error:
            reading.problem(str(error))
            return reading.finish()
        found = find_payloads(body.text, self.tools(space))
        before = found.before
        is_silent = not found.values and found.problem is None
        if self.ends_in_text and before and is_silent and is_prose(before):
            reading.add(closing_of(before))
            before = ""
        reading.each(found.values, lambda value: self._read_value(value, reading))
        if found.problem is not None:
            reading.problem(found.problem)
        return reading.finish("\n".join(part for part in (body.thinking, before) if part))

    def write(self, actions: Sequence[Action], space: CoordinateSpace) -> str:
        """Return calls, or plain text to end the episode; see `ActionFamily.write`.

        Raises:
            InexpressibleActionError: The family cannot express an action, or there are none or too
                many.
        """
        text = closing_text(actions[-1]) if self.ends_in_text and actions else None
        if text is None:
            return super().write(actions, space)
        writing = Writing(self.name, actions[-1], space)
        if len(actions) > 1:
            raise writing.refusal("an ending must be the only action in its reply")
        if self.parse(text, space).actions != (actions[-1],):
            raise writing.refusal("its text would not read back unchanged")
        return text

    @abstractmethod
    def _read(self, call: Call, reading: Reading) -> None:
        """Add the actions of a call to the reading."""

    def _read_value(self, value: object, reading: Reading) -> None:
        for call in calls_of(value):
            if call.name is not None and call.name not in self.tool_names:
                offered = ", ".join(map(repr, self.tool_names))
                raise MalformedActionError(f"there is no tool {quoted(call.name)}; call {offered}")
            self._read(call, reading)

    def _joined(self, parts: Sequence[Part]) -> str:
        """Return a call of the family's tool for each part, its arguments."""
        return write_calls((self.tool_names[0], arguments) for arguments in parts)


def entries_of(actions: object) -> list[object]:
    """Return the entries of a call's `actions`.

    Raises:
        MalformedActionError: It is not a list, or empty.
    """
    if not isinstance(actions, list) or not actions:
        raise MalformedActionError("'actions' must be a list of one or more actions")
    return cast(list[object], actions)


def write_calls(calls: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Return calls, each a tool's name and its arguments, in Hermes form, which Qwen uses too."""
    bodies = (
        json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        for name, arguments in calls
    )
    return "\n".join(f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}" for body in bodies)
