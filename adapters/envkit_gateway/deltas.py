"""Find which part of a growing reply is certain, whatever the model samples next.

What `reply_of` returns for a whole reply always begins with what is returned here for its
beginnings. Everything that could still become something else is held back: part of a character,
of a mark or of a stop string, white space that a call would strip, and all text from a call on.
"""

import re
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from envkit.errors import LedgerFault
from envkit.reply import THOUGHTS
from envkit.rollout.token_stream import TokenStream
from envkit.toolcalls.json_formats import CALL_MARKS, may_begin_call
from envkit_gateway.messages import AgentMessage

_RARE: Final = "\U000e0fff"
"""A character that no vocabulary has, whose last token is part of a character."""
_BROKEN: Final = "\ufffd"
_MARKS: Final = (*THOUGHTS, *CALL_MARKS)
_CALL_OR_THOUGHT: Final = re.compile(rf"{'|'.join(map(re.escape, _MARKS))}|[\ud800-\udfff]")
"""Lone surrogates, too: reading calls replaces them."""


class Delta(NamedTuple):
    """What became certain; empty texts if nothing did."""

    thinking: str = ""
    text: str = ""

    def plus(self, more: "Delta") -> "Delta":
        """Return both as one."""
        return Delta(self.thinking + more.thinking, self.text + more.text)

    def rest_of(self, message: AgentMessage) -> "Delta":
        """Return what a message has after this beginning.

        Raises:
            LedgerFault: It does not begin with it, which the tokenizer is to blame for.
        """
        thinking, text = message.thinking or "", message.text
        if not (thinking.startswith(self.thinking) and text.startswith(self.text)):
            raise LedgerFault(
                "the text of a reply must begin with what was streamed of it, got other text: the "
                "tokenizer decodes the first tokens of a text differently than the whole"
            )
        return Delta(thinking[len(self.thinking) :], text[len(self.text) :])


class _Phase(Enum):
    START = auto()
    """Only white space and thoughts so far."""
    THOUGHT = auto()
    ANSWER = auto()
    HELD = auto()
    """A call may have begun: nothing more is certain before the end."""


class TokenText:
    """Turns growing token ids into text that further ids cannot change."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        encode: Callable[[str], Sequence[int]],
        stop_ids: Sequence[int],
    ) -> None:
        """Begin a reply.

        Args:
            decode: Returns the text of tokens.
            encode: Returns the tokens of a text.
            stop_ids: Tokens that end a reply and are not part of its text.
        """
        self._decode, self._stop_ids = decode, frozenset(stop_ids)
        rare = [*encode(_RARE)][-1:]
        self._part = rare if rare and _BROKEN in decode(rare) else []
        self._ids: list[int] = []
        self._start = self._end = 0
        """The window of the last tokens whose text was returned."""

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that became certain with further ids."""
        self._ids += ids
        count = len(self._ids)
        while count and self._ids[count - 1] in self._stop_ids:
            count -= 1
        if count <= self._end:
            return ""
        window = self._ids[self._start : count]
        known = self._decode(self._ids[self._start : self._end])
        text = self._decode(window)
        # Bytes are tokens of some vocabularies, and change the text of the bytes before them.
        if (
            text.endswith(_BROKEN)
            or not text.startswith(known)
            or not self._decode([*window, *self._part]).startswith(text)
        ):
            return ""
        self._start, self._end = self._end, count
        return text[len(known) :]


class ReplyDeltas:
    """Turns the growing text of a reply into thinking and text that are certain."""

    def __init__(self, *, opened: str, stop: Sequence[str], has_calls: bool) -> None:
        """Begin a reply.

        Args:
            opened: The mark with which the prompt opened a thought, or "".
            stop: Stop strings of the client.
            has_calls: Whether calls are read.
        """
        self._stop, self._has_calls = tuple(stop), has_calls
        self._phase = _Phase.THOUGHT if opened else _Phase.START
        self._closing, self._opened = THOUGHTS.get(opened, ""), opened
        self._unread = ""
        """Text from a stop string on, or that may begin one."""
        self._rest = ""
        """Text of the phase that is not certain yet."""
        self._space = ""
        """White space outside thoughts before the answer."""
        self._gap = ""
        """White space in a thought, which is certain once the thought goes on."""
        self._is_begun = self._has_thinking = False
        """Whether the present thought, or any, has more than white space."""
        self._is_text = False
        """Whether the answer does not begin with a call."""

    def feed(self, text: str) -> Delta:
        """Return what became certain with further text."""
        if self._phase is _Phase.HELD:
            return Delta()
        unread = self._unread + text
        places = [place for one in self._stop if (place := unread.find(one)) >= 0]
        end = min(places) if places else len(unread) - _unsure(unread, self._stop)
        self._rest, self._unread = self._rest + unread[:end], unread[end:]
        thinking = ""
        phase = None
        while phase is not self._phase and self._phase in (_Phase.START, _Phase.THOUGHT):
            phase = self._phase
            if phase is _Phase.START:
                self._read_start()
            else:
                thinking += self._read_thought()
        return Delta(thinking, self._read_answer() if self._phase is _Phase.ANSWER else "")

    def _read_start(self) -> None:
        rest = self._rest.lstrip()
        self._space += self._rest[: len(self._rest) - len(rest)]
        self._rest = rest
        mark = next((one for one in THOUGHTS if rest.startswith(one)), None)
        if mark is not None:
            self._phase, self._closing = _Phase.THOUGHT, THOUGHTS[mark]
            self._rest = rest.removeprefix(mark)
            self._gap, self._is_begun = "", False
        elif rest and not any(one.startswith(rest) for one in THOUGHTS):
            self._phase = _Phase.ANSWER
            space = self._space.removeprefix("\n\n") if self._has_thinking else self._space
            self._rest = space + rest

    def _read_thought(self) -> str:
        rest, closing = self._rest, self._closing
        if self._opened:  # the model may repeat the mark
            if self._opened.startswith(rest) and rest != self._opened:
                return ""
            rest, self._opened = rest.removeprefix(self._opened), ""
        end = rest.find(closing)
        if end >= 0:
            self._phase = _Phase.START
            thought, self._rest = rest[:end], rest[end + len(closing) :]
        else:
            end = len(rest) - _unsure(rest, (closing,))
            thought, self._rest = rest[:end], rest[end:]
        said = self._gap + thought if self._is_begun else thought.lstrip()
        sure = said.rstrip()
        if sure and not self._is_begun:
            self._is_begun = True
            before = "\n" if self._has_thinking else ""
        else:
            before = ""
        self._gap = said[len(sure) :] if self._is_begun else ""
        self._has_thinking = self._has_thinking or bool(sure)
        return before + sure

    def _read_answer(self) -> str:
        if not self._has_calls:
            text, self._rest = self._rest, ""
            return text
        if not self._is_text:
            if may_begin_call(self._rest):
                return ""
            self._is_text = True
        found = _CALL_OR_THOUGHT.search(self._rest)
        if found is not None:
            self._phase = _Phase.HELD
            return self._rest[: found.start()].rstrip()  # a call strips the text around it
        sure = self._rest[: len(self._rest) - _unsure(self._rest, _MARKS)].rstrip()
        self._rest = self._rest[len(sure) :]
        return sure


class GrowingReply:
    """What one client sees of a reply while an engine samples it."""

    def __init__(
        self, stream: TokenStream, begin: Callable[[], tuple[TokenText, ReplyDeltas]]
    ) -> None:
        """Begin with nothing shown.

        Args:
            stream: The ids.
            begin: Returns new readers for an attempt to sample the reply.
        """
        self._stream, self._begin = stream, begin
        self._attempt, self._read = stream.attempts, 0
        self._text, self._deltas = begin()

    def more(self) -> Delta:
        """Return what became certain. The caller shows it, so the reply cannot start over."""
        stream = self._stream
        if self._attempt != stream.attempts:
            self._attempt, self._read = stream.attempts, 0
            self._text, self._deltas = self._begin()
        ids, self._read = stream.ids[self._read :], len(stream.ids)
        more = self._deltas.feed(self._text.feed(ids))
        if more != Delta():
            stream.is_shown = True
        return more


def _unsure(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest end of a text with which a mark may begin."""
    longest = max(map(len, marks), default=1) - 1
    tail = text[-longest:] if longest else ""
    return next(
        (len(tail) - n for n in range(len(tail)) if any(one.startswith(tail[n:]) for one in marks)),
        0,
    )
