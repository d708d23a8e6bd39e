"""A model's reply as an environment reads it: its text, how it ended, and what is only thought.

Two rules hold for every format. A reply that was cut is not acted on, because the model would have
gone on. What stands in a thought is neither an answer nor a call, whether the model or the prompt
opened the thought, and whether or not it was closed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, cast

from envkit.errors import ConfigurationError, shown

CUT: Final = "cut"
"""`info["parse_error"]` after a reply that was cut."""
CUT_NOTICE: Final = (
    "Your reply was cut at the limit on its length: nothing in it was run or graded. Write a "
    "shorter reply."
)
UNFINISHED: Final = "the thinking is not closed: the reply holds neither a call nor an answer"
THOUGHTS: Final[Mapping[str, str]] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<longcat_think>": "</longcat_think>",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|start_think|>": "<|end_think|>",
    "<|think:start|>": "<|think:end|>",
    "<|thought_start|>": "<|thought_end|>",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|>",
}
"""How model families open a thought, and how they close it."""

_SHARED: Final = frozenset({"<channel|>", "<|end|>"})
"""Marks that close other things, too: without their opening they say nothing."""
_CLOSERS: Final = frozenset(THOUGHTS.values()) - _SHARED
_BLOCKS: Final[Mapping[str, str]] = {"<tool_call>": "</tool_call>", "<function=": "</function>"}
_JSON_MARKS: Final = ("[TOOL_CALLS]", "<|python_tag|>")
_EVENT: Final = re.compile("|".join(map(re.escape, (*THOUGHTS, *_CLOSERS, *_BLOCKS, *_JSON_MARKS))))
_MARK: Final = re.compile("|".join(map(re.escape, (*THOUGHTS, *_CLOSERS))))
_LEADING_JSON: Final = re.compile(r"\s*(?=[{\[])")
_ARGUMENTS: Final = re.compile(r"[^{\[\n]{0,200}(?:\[(?:ARGS|CALL_ID)\][^{\[\n]{0,200})*(?=[{\[])")
_MAX_DECODED: Final = 32
"""JSON values that one reply may have outside blocks; more would take quadratic time."""
_DECODER: Final = json.JSONDecoder(strict=False)


class FinishReason(StrEnum):
    """Why an engine stopped sampling."""

    STOP = "stop"
    """A stop token or a stop string, which is the end of `token_ids`."""
    LENGTH = "length"
    """The limit on new tokens was reached."""
    ABORT = "abort"
    """The request was aborted; the tokens so far are valid."""


class _Parts(NamedTuple):
    thinking: str
    answer: str
    closing: str
    """The mark that would close the thought in which the reply ends; "" if it ends in none."""
    spans: tuple[tuple[int, int], ...]
    """Where the thoughts are in the text, with their marks."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply and how it ended. `Env.reply` has the one that the hook takes."""

    text: str
    finish: FinishReason = FinishReason.STOP
    opened: str = ""
    """The mark with which the prompt opened a thought, a key of `THOUGHTS`; "" if it did not."""
    is_opening_known: bool = False
    """Whether `opened` was read from the prompt. A mark that closes no thought is then text;
    otherwise all text before it is a thought that the prompt opened."""

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ConfigurationError: The text is not a string, the finish reason is unknown, or the mark
                opens no thought.
        """
        if not isinstance(cast(object, self.text), str):
            raise ConfigurationError(f"the text of a Reply must be a str, got {shown(self.text)}")
        try:
            object.__setattr__(self, "finish", FinishReason(self.finish))
        except ValueError as error:
            raise ConfigurationError(
                f"the finish of a Reply must be one of {[*FinishReason]}, got {shown(self.finish)}"
            ) from error
        if self.opened and self.opened not in THOUGHTS:
            raise ConfigurationError(
                f"opened must be '' or one of {[*THOUGHTS]}, got {shown(self.opened)}"
            )

    @property
    def is_cut(self) -> bool:
        """Whether the model would have gone on: anything but "stop"."""
        return self.finish is not FinishReason.STOP

    @property
    def thinking(self) -> str:
        """The text inside thoughts, without their marks, stripped."""
        return self._parts.thinking

    @property
    def answer(self) -> str:
        """The text outside thoughts; of a cut reply, as far as it goes."""
        return self._parts.answer

    @property
    def final(self) -> str:
        """What may be graded and run: the answer of a whole reply, "" for one that was cut."""
        return "" if self.is_cut else self._parts.answer

    @property
    def problem(self) -> str:
        """Why nothing in it may be run or graded, as a sentence for the model; "" if it may.

        It was cut, or it ends in a thought and has nothing outside thoughts.
        """
        if self.is_cut:
            return CUT_NOTICE
        return UNFINISHED if self.open_thought and not self.answer.strip() else ""

    @property
    def open_thought(self) -> str:
        """The mark that would close the thought in which the text ends; "" if it ends in none."""
        return self._parts.closing

    @property
    def thought_spans(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each thought in the text, in characters, with its marks."""
        return self._parts.spans

    @cached_property
    def _parts(self) -> _Parts:
        return _split(self.text, self.opened, has_strays=not self.is_opening_known)

    def with_text(self, text: str) -> "Reply":
        """Return a reply that ended in the same way, with the text that a wrapper made of it."""
        return self if text == self.text else replace(self, text=text)

    def to_wire(self) -> "str | dict[str, str | bool]":
        """Return JSON data: the text alone for a whole reply whose prompt opened no thought."""
        if self == Reply(text=self.text):
            return self.text
        return {
            "text": self.text,
            "finish": self.finish.value,
            "opened": self.opened,
            **({"is_opening_known": True} if self.is_opening_known else {}),
        }

    @classmethod
    def from_wire(cls, data: object) -> "Reply":
        """Read what `to_wire` returned.

        Raises:
            ConfigurationError: It is neither a string nor an object with the fields of a reply.
        """
        if isinstance(data, str):
            return cls(text=data)
        fields = cast("dict[Any, Any]", data) if isinstance(data, dict) else {}
        known = {"text", "finish", "opened", "is_opening_known"}
        if "text" not in fields or not fields.keys() <= known:
            raise ConfigurationError(
                "a reply is a string, or an object with 'text', 'finish' and 'opened', "
                f"got {shown(data)}"
            )
        return cls(**fields)


def _split(text: str, opened: str, *, has_strays: bool) -> _Parts:
    """Split a reply into its thoughts and the rest, in time linear in its length.

    Args:
        text: The reply.
        opened: The mark with which the prompt opened a thought, or "".
        has_strays: Whether a mark that closes no thought closes one of the prompt.
    """
    if not opened and _MARK.search(text) is None:
        return _Parts("", text, "", ())
    before: list[str] = []  # pieces up to a stray mark: joining them at each would be quadratic
    thoughts: list[str] = []
    answer: list[str] = []
    spans: list[tuple[int, int]] = []
    at, begin, closing = 0, 0, THOUGHTS.get(opened, "")
    for kind, start, end in _spans(text, closing):
        match kind:
            case "open":
                answer.append(text[at:start])
                begin, closing = start, THOUGHTS[text[start:end]]
            case "close":
                thoughts.append(text[at:start])
                spans.append((begin, end))
                closing = ""
            case "stray":  # the prompt had opened a thought, and nobody said so
                if not has_strays:
                    continue
                before += [*thoughts, *answer, text[at:start]]
                thoughts, answer, closing = [], [], ""
                spans = [(0, end)]
        at = end
    (thoughts if closing else answer).append(text[at:])
    if closing:
        spans.append((begin, len(text)))
    if before:
        thoughts.insert(0, "".join(before))
    if opened and thoughts:  # the model may repeat the mark
        thoughts[0] = thoughts[0].removeprefix(opened)
    inside = "\n".join(filter(None, (thought.strip() for thought in thoughts)))
    return _Parts(inside, "".join(answer), closing, tuple(spans))


def _spans(text: str, closing: str) -> Iterator[tuple[Literal["open", "close", "stray"], int, int]]:
    """Yield the marks of thoughts with their places; marks inside closed calls are arguments."""
    calls = _Calls(text)
    at = 0 if closing else calls.leading(0)
    while True:
        if closing:
            start = text.find(closing, at)
            if start < 0:
                return
            at = start + len(closing)
            yield "close", start, at
            closing, at = "", calls.leading(at)
            continue
        found = _EVENT.search(text, at)
        if found is None:
            return
        mark, at = found.group(), found.end()
        if mark in THOUGHTS:
            closing = THOUGHTS[mark]
            yield "open", found.start(), at
        elif mark in _CLOSERS:
            yield "stray", found.start(), at
            at = calls.leading(at)
        else:
            at = calls.after(mark, at)


class _Calls:
    """Finds where the calls of a reply end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._closes: dict[str, int] = {}
        self._decoded = 0

    def leading(self, at: int) -> int:
        """Return the end of the JSON that an answer begins with; `at` without any."""
        found = _LEADING_JSON.match(self._text, at)
        return at if found is None else self._after_json(found.end(), otherwise=at)

    def after(self, mark: str, at: int) -> int:
        """Return the end of the call whose mark ends at `at`; `at` if it is not closed."""
        if mark in _JSON_MARKS:
            found = _ARGUMENTS.match(self._text, at)
            return at if found is None else self._after_json(found.end(), otherwise=at)
        found = _LEADING_JSON.match(self._text, at)
        if found is not None:  # its strings may quote the mark that closes the block
            end = self._after_json(found.end(), otherwise=-1)
            if end >= 0 and self._text[end : end + 64].lstrip().startswith(_BLOCKS[mark]):
                return self._text.find(_BLOCKS[mark], end) + len(_BLOCKS[mark])
        close = self._close(mark, at)
        following = self._text.find(mark, at, max(close, at))
        if close < 0 or following >= 0:  # what a draft left open ends before the next call
            return at
        return close + len(_BLOCKS[mark])

    def _close(self, mark: str, at: int) -> int:
        known = self._closes.get(mark, 0)
        if 0 <= known < at:
            known = self._closes[mark] = self._text.find(_BLOCKS[mark], at)
        return known

    def _after_json(self, at: int, *, otherwise: int) -> int:
        self._decoded += 1
        if self._decoded > _MAX_DECODED:
            return otherwise
        try:
            return _DECODER.raw_decode(self._text, at)[1]
        except (ValueError, RecursionError):
            return otherwise
