"""Read replies of families that act by JSON: tool calls, or bare objects."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

from envkit.reply import Reply
from envkit.tools import ToolSpec
from envkit_actions.action import Action
from envkit_actions.closing import closing_of, closing_text
from envkit_actions.malformed import (
    InexpressibleActionError,
    MalformedActionError,
    quoted,
)
from envkit_actions.parsed import MAX_ACTIONS, ParsedActions, Reading
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

ReadCall = Callable[[Call, Reading], None]


def parse_calls(
    reply: Reply | str,
    space: CoordinateSpace,
    read: ReadCall,
    *,
    tool_names: Collection[str],
    tools: Sequence[ToolSpec] = (),
    ends_in_text: bool = False,
) -> ParsedActions:
    """Read a reply's calls in order.

    Args:
        reply: Any model output; a string is a whole reply.
        space: Coordinate space of the reply.
        read: Adds the actions of one call to the reading.
        tool_names: Names that a call may carry, at least one.
        tools: Their schemas, for calls in Qwen3-Coder's XML.
        ends_in_text: Whether a reply without any JSON ends the episode.
    """
    reading = Reading(space)
    try:
        body = split_reply(reply, ())
    except MalformedActionError as error:
        reading.problem(str(error))
        return reading.finish()
    found = find_payloads(body.text, tools)
    before = found.before
    is_silent = not found.values and found.problem is None
    if ends_in_text and before and is_silent and is_prose(before):
        reading.add(closing_of(before))
        before = ""

    def read_value(value: object) -> None:
        for call in calls_of(value):
            if call.name is not None and call.name not in tool_names:
                offered = ", ".join(map(repr, tool_names))
                raise MalformedActionError(f"there is no tool {quoted(call.name)}; call {offered}")
            read(call, reading)

    reading.each(found.values, read_value)
    if found.problem is not None:
        reading.problem(found.problem)
    return reading.finish("\n".join(part for part in (body.thinking, before) if part))


def entries_of(actions: object) -> list[object]:
    """Return the entries of a call's `actions`.

    Raises:
        MalformedActionError: It is not a list, or empty.
    """
    if not isinstance(actions, list) or not actions:
        raise MalformedActionError("'actions' must be a list of one or more actions")
    return cast(list[object], actions)


def check_countable(family: str, actions: Sequence[Action]) -> None:
    """Check that a reply can hold this many actions.

    Raises:
        InexpressibleActionError: There are none, or too many.
    """
    if not 1 <= len(actions) <= MAX_ACTIONS:
        raise InexpressibleActionError(
            f"{family} writes 1 to {MAX_ACTIONS} actions a reply, got {len(actions)}"
        )


def write_calls(calls: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Return calls, each a tool's name and its arguments, in Hermes form, which Qwen uses too."""
    bodies = (
        json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        for name, arguments in calls
    )
    return "\n".join(f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}" for body in bodies)


def write_ending(family: str, actions: Sequence[Action], space: CoordinateSpace) -> str | None:
    """Return the text of a reply that ends the episode, or None if the actions do not.

    Raises:
        InexpressibleActionError: The text would be read as something else.
    """
    check_countable(family, actions)
    text = closing_text(actions[-1])
    if text is None:
        return None
    writing = Writing(family, actions[-1], space)
    if len(actions) > 1:
        raise writing.refusal("an ending must be the only action in its reply")
    if parse_calls(text, space, _ignore, tool_names=(family,), ends_in_text=True).actions != (
        actions[-1],
    ):
        raise writing.refusal("its text would not read back unchanged")
    return text


def _ignore(call: Call, reading: Reading) -> None:
    """Ignore a call."""
