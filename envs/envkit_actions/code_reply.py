"""Read replies of families that act by Python-like calls."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from envkit.reply import Reply
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
    """Return the first block between ``` fences, or else the whole body.

    Raises:
        MalformedActionError: The block is not closed.
    """
    opening = _FENCE.search(body)
    if opening is None:
        return Code(body.strip(), "")
    close = body.find("```", opening.end())
    if close < 0:
        raise MalformedActionError("the block of code is not closed by ```: it was not run")
    return Code(body[opening.end() : close].strip(), body[: opening.start()].strip())


def parse_code(
    reply: Reply | str,
    space: CoordinateSpace,
    *,
    marks: tuple[str, ...],
    extract: Extract,
    read: Callable[[str, Reading], None],
) -> ParsedActions:
    """Read a reply whose actions are text.

    Args:
        reply: Any model output; a string is a whole reply.
        space: Coordinate space of the reply.
        marks: How replies of the family begin; marks of thoughts in such a reply are text.
        extract: Finds the calls in the body.
        read: Adds the actions of the calls' text to the reading; may raise MalformedActionError.
    """
    reading = Reading(space)
    try:
        body = split_reply(reply, marks)
        code = extract(body.text)
    except MalformedActionError as error:
        reading.problem(str(error))
        return reading.finish()
    reading.each([code.source] if code.source else [], lambda source: read(source, reading))
    return reading.finish("\n".join(part for part in (body.thinking, code.thought) if part))
