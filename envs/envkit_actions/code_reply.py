"""Read replies of families that act by Python-like calls."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from envkit_actions.malformed import MalformedActionError
from envkit_actions.parsed import ParsedActions, Reading
from envkit_actions.reply import split_reply
from envkit_actions.spaces import CoordinateSpace

_FENCE: Final = re.compile(r"```(?:python|py|json)?[ \t]*\n?")


class Code(NamedTuple):
    """The calls of a reply as text, and the text before them."""

    source: str
    thought: str


Extract = Callable[[str], Code]


def fenced(body: str) -> Code:
    """Return the first block between ``` fences, or else the whole body."""
    opening = _FENCE.search(body)
    if opening is None:
        return Code(body.strip(), "")
    close = body.find("```", opening.end())
    source = body[opening.end() :] if close < 0 else body[opening.end() : close]
    return Code(source.strip(), body[: opening.start()].strip())


def parse_code(
    reply: str,
    space: CoordinateSpace,
    *,
    marks: tuple[str, ...],
    extract: Extract,
    read: Callable[[str, Reading], None],
) -> ParsedActions:
    """Read a reply whose actions are text.

    Args:
        reply: Any model output.
        space: Coordinate space of the reply.
        marks: How replies of the family begin; `</think>` in such a reply is text.
        extract: Finds the calls in the body.
        read: Adds the actions of the calls' text to the reading; may raise MalformedActionError.
    """
    reading = Reading(space)
    try:
        body = split_reply(reply, marks)
    except MalformedActionError as error:
        reading.problem(str(error))
        return reading.finish()
    code = extract(body.text)
    reading.each([code.source] if code.source else [], lambda source: read(source, reading))
    return reading.finish("\n".join(part for part in (body.thinking, code.thought) if part))
