"""Families that act by Python-like calls."""

import re
from abc import abstractmethod
from typing import ClassVar, Final, NamedTuple

from envkit.reply import Reply
from envkit_actions.family import ActionFamily
from envkit_actions.malformed import MalformedActionError
from envkit_actions.parsed import ParsedActions, Reading
from envkit_actions.reply import split_reply
from envkit_actions.spaces import CoordinateSpace

_FENCE: Final = re.compile(r"```(?:python|py|json)?[ \t]*\n?")


class Code(NamedTuple):
    """The calls of a reply as text, and the text before them."""

    source: str
    thought: str


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


class CodeFamily(ActionFamily):
    """A family that acts by Python-like calls."""

    marks: ClassVar[tuple[str, ...]]
    """How its replies begin; marks of thoughts in such a reply are text."""

    def parse(self, reply: Reply | str, space: CoordinateSpace) -> ParsedActions:
        """Read the calls of a reply; see `ActionFamily.parse`."""
        reading = Reading(space)
        try:
            body = split_reply(reply, self.marks)
            code = self._extract(body.text)
        except MalformedActionError as error:
            reading.problem(str(error))
            return reading.finish()
        sources = [code.source] if code.source else []
        reading.each(sources, lambda source: self._read(source, reading))
        return reading.finish("\n".join(part for part in (body.thinking, code.thought) if part))

    @abstractmethod
    def _extract(self, body: str) -> Code:
        """Find the calls in a body; may raise MalformedActionError."""

    @abstractmethod
    def _read(self, source: str, reading: Reading) -> None:
        """Add the actions of the calls' text to the reading; may raise MalformedActionError."""
