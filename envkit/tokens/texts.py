"""Make texts in messages safe: they may never form a control token or an image.

Text from environments, tools, datasets and users is foreign. Every control token in it is broken by
one character (see `envkit.tokens.controls`), unless its author wrapped it in
`envkit.messages.Trusted`. Assistant text is the model's own and stays as sampled. Three things are
replaced in every text, including trusted and sampled ones: a literal image placeholder, which would
be counted as an image; a lone surrogate, which no tokenizer accepts; and the codec's own mark. NUL
is replaced in foreign text.

A template can join harmless pieces into a token: two parts, a text and the template's own words, or
the two sides of a cut. If that is possible, the rendered text is compared with a render whose
foreign text has no character that starts or ends a token. If the tokens differ, all punctuation is
broken in the foreign texts that could be involved. Switches that the template looks for
("/no_think") stay whole in both renders, so that they mean the same in a prompt and in the history
of a later observation.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, cast

from envkit.errors import TemplateError
from envkit.tokens.controls import Controls, TokenSearch, split
from envkit.tokens.template import PlainMessage

Ranges = Sequence[Sequence[int]]
"""Start and end of each part of a text that is trusted."""
Write = Callable[[list[PlainMessage], list[PlainMessage]], str]
"""Renders cleaned messages and their cleaned history."""
_SURROGATES: Final = dict.fromkeys(range(55296, 57344), "�")
_UNFIT: Final = {**_SURROGATES, 0: "\ufffd"}
_PUNCTUATION: Final = re.compile(r"[^\w\s]|_")
_STAND_IN: Final = 0xE000
"""First of the private-use characters that replace those at the start or end of a token."""


class _Form(Enum):
    """How to write foreign text."""

    CLEAN = auto()
    HARMLESS = auto()
    """Without any character that could start or end a token; used for comparison."""
    HARD = auto()
    """With all punctuation broken in texts that a template could join into a token, except in the
    template's own switches. Other texts are unchanged."""
    HARDEST = auto()
    """With the switches broken too, if a token is otherwise left."""


@dataclass(slots=True)
class _Pass:
    """One walk over messages."""

    form: _Form = _Form.CLEAN
    changed: int = 0
    foreign: list[str] = field(default_factory=list[str])


class TextPolicy:
    """Neutralises the text of messages, and counts the changes."""

    def __init__(
        self,
        controls: Controls,
        *,
        marks: Sequence[str],
        media: Iterable[str],
        image_roles: Iterable[str] = (),
        neutralise: bool,
    ) -> None:
        """Prepare the searches.

        Args:
            controls: The tokens that foreign text must not become.
            marks: The codec's own random words.
            media: Names of the placeholders that would be counted.
            image_roles: Roles other than "user" whose images the template renders.
            neutralise: False breaks only text that would corrupt the ledger's counts.
        """
        self.controls = controls
        self.neutralise = neutralise
        self._media = TokenSearch(media)
        self._search = controls.search if neutralise else self._media
        self._doubtful = (*self._search.firsts, "\0")
        self._has_hidden = neutralise and controls.normalizes
        self._marks = tuple(marks)
        self._kept_from_replies = (*self._media.firsts, *self._marks)
        """What a text contains if it contains a placeholder or a mark."""
        self._image_roles = frozenset(image_roles) | {"user"}
        edges = sorted({name[0] for name in controls.names} | {name[-1] for name in controls.names})
        self._stand_ins = {ord(edge): chr(_STAND_IN + n) for n, edge in enumerate(edges)}

    def clean(self, text: str) -> str:
        """Return foreign text without tokens; the same object if there were none."""
        # A tokenizer that normalizes may form a token that the text itself does not show.
        if self._has_hidden or not self._is_harmless(text):
            return self._written(text, (), _Pass())
        return text

    def _is_harmless(self, text: str) -> bool:
        """Whether there is nothing to change; one or two scans decide for most texts."""
        if text.isascii():
            for first in self._doubtful:
                if first in text:
                    break
            else:
                return True
        elif not _is_encodable(text):
            return False
        return "\0" not in text and not self._search.is_in(text)

    def spoken(self, text: str) -> str:
        """Return the model's own text, in which no placeholder counts as an image."""
        if text.isascii() and not any(one in text for one in self._kept_from_replies):
            return text
        return self.controls.breaker.join(self.spoken_pieces(text))

    def spoken_pieces(self, text: str) -> list[str]:
        """Return the model's own text in pieces, none of which contains a whole placeholder."""
        text = _replaced(text, _SURROGATES)
        # After the first character: a placeholder that a model spells out must not count as an
        # image.
        places = [start + 1 for start, _ in self._media.find(text)]
        return split(text, places + self._mark_places(text))

    def schemas(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return tool schemas with every name and text cleaned."""
        return [_mapped(tool, self.clean) for tool in tools]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        write: Write,
        *,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[str, int]:
        """Return messages as rendered text, and how many of their texts were changed.

        Args:
            messages: The messages to render.
            write: Renders cleaned messages and their cleaned history.
            history: Earlier messages for `write`; they were counted when they were new.

        Raises:
            TemplateError: The template rejects the messages, a role or part is unknown, or an image
                is in a role whose images the template drops.
        """
        text, _, changed = self._settle(messages, write, history)
        return text, changed

    def as_rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        write: Write | None,
        *,
        history: Sequence[Mapping[str, Any]],
        whole: Sequence[Mapping[str, Any]],
    ) -> list[PlainMessage]:
        """Return a conversation with its texts as `render` writes them.

        Args:
            messages: As for `render`.
            write: As for `render`; None if the messages were cleaned without rendering them.
            history: As for `render`.
            whole: The messages to return.

        Raises:
            TemplateError: As for `render`.
        """
        form = _Form.CLEAN if write is None else self._settle(messages, write, history)[1]
        return self._all(whole, _Pass(form))

    def _settle(
        self,
        messages: Sequence[Mapping[str, Any]],
        write: Write,
        history: Sequence[Mapping[str, Any]],
    ) -> tuple[str, _Form, int]:
        """Return messages as rendered text, the form of their texts, and how many were changed."""
        walk, before = _Pass(), _Pass()
        text = write(self._all(messages, walk), self._all(history, before))
        # The usual case needs one render. The comparison needs two to four.
        if not self.neutralise or not self._may_join([*walk.foreign, *before.foreign]):
            return text, _Form.CLEAN, walk.changed
        harmless = self._in_form(_Form.HARMLESS, messages, history, write)
        tokens = None if harmless is None else self._tokens(harmless)
        if tokens == self._tokens(text):
            return text, _Form.CLEAN, walk.changed
        found = text, _Form.CLEAN, walk.changed
        for form in (_Form.HARD, _Form.HARDEST):
            hard = self._in_form(form, messages, history, write)
            if hard is not None:
                found = hard, form, walk.changed
                if self._tokens(hard) == tokens:
                    break
        return found

    def _in_form(
        self,
        form: _Form,
        messages: Sequence[Mapping[str, Any]],
        history: Sequence[Mapping[str, Any]],
        write: Write,
    ) -> str | None:
        try:
            return write(self._all(messages, _Pass(form)), self._all(history, _Pass(form)))
        except TemplateError:  # the template rejects this form, so keep the clean one
            return None

    def _may_join(self, texts: Sequence[str]) -> bool:
        firsts = self._search.firsts
        for text in texts:
            if self.controls.is_open(text):
                return True
            if self.controls.changes_text and any(first in text for first in firsts):
                return True
        return False

    def _tokens(self, text: str) -> list[str]:
        return [text[start:end] for start, end in self._search.find(text)]

    # ---- messages

    def _all(self, messages: Sequence[Mapping[str, Any]], walk: _Pass) -> list[PlainMessage]:
        return [self._message(entry, walk) for entry in messages]

    def _message(self, entry: Mapping[str, Any], walk: _Pass) -> PlainMessage:
        role = entry["role"]
        trusted: Ranges = entry.get("trusted") or ()
        kept = {key: value for key, value in entry.items() if key not in ("trusted", "content")}
        is_own = role == "assistant"
        result: PlainMessage = _mapped(kept, self.spoken if is_own else self.clean)
        for call in cast("list[dict[str, Any]]", result.get("tool_calls") or ()):
            self._clean_call(call)
        content: Any = entry.get("content")
        if isinstance(content, str):
            result["content"] = (
                self.spoken(content) if is_own else self._written(content, trusted, walk)
            )
        elif content is not None:
            result["content"] = self._parts(content, role, trusted, walk)
        elif "content" in entry:
            result["content"] = None
        return result

    def _clean_call(self, call: dict[str, Any]) -> None:
        """Clean the names of a call like those of its result."""
        # Templates compare the two.
        function: Any = call.get("function")
        owners: list[Any] = [call, function] if isinstance(function, dict) else [call]
        for owner in owners:
            for key in ("id", "name"):
                if isinstance(owner.get(key), str):
                    owner[key] = self.clean(owner[key])

    def _parts(
        self, parts: Sequence[Mapping[str, Any]], role: str, trusted: Ranges, walk: _Pass
    ) -> list[Mapping[str, Any]]:
        """Return cleaned parts; a token that spans several parts is also broken."""
        texts = [self._text_of(part, role) for part in parts]
        if role == "assistant":
            pieces = [None if text is None else self.spoken(text) for text in texts]
        else:
            pieces = self._pieces(texts, trusted, walk)
        return [
            part if piece is None else {**part, "text": piece}
            for part, piece in zip(parts, pieces, strict=True)
        ]

    def _text_of(self, part: Mapping[str, Any], role: str) -> str | None:
        """Return the text of a part, None for an image.

        Raises:
            TemplateError: It is an image in a role whose images the template drops.
        """
        if part["type"] == "text":
            return part["text"]
        if role not in self._image_roles:
            raise TemplateError(
                f"images must be in a 'user' message, got one in role {role!r}, where this chat "
                "template drops them. Send the tool's text as 'tool' and its image as 'user'"
            )
        return None

    def _pieces(
        self, texts: Sequence[str | None], trusted: Ranges, walk: _Pass
    ) -> list[str | None]:
        known = [text for text in texts if text is not None]
        # Joined, because a template may write neighbouring parts without anything between them.
        fit, places = self._places("".join(known), trusted, walk, parts=known)
        pieces: list[str | None] = []
        start = 0
        for text in texts:
            if text is None:
                pieces.append(None)
                continue
            end = start + len(text)
            own = [place - start for place in places if start < place <= end]
            pieces.append(self._broken(fit[start:end], own))
            walk.changed += pieces[-1] != text
            start = end
        walk.foreign += [piece for piece in pieces if piece is not None]
        return pieces

    # ---- one text

    def _written(self, text: str, trusted: Ranges, walk: _Pass) -> str:
        fit, places = self._places(text, trusted, walk)
        result = self._broken(fit, places) if places else fit
        walk.changed += result != text
        walk.foreign.append(result)
        return result

    def _places(
        self, text: str, trusted: Ranges, walk: _Pass, parts: Sequence[str] = ()
    ) -> tuple[str, list[int]]:
        """Return a text after character replacements, and the positions where to break it.

        Args:
            text: The foreign text.
            trusted: Ranges that are not broken.
            walk: Determines the form to write.
            parts: The texts it is joined from; empty for a single text.
        """
        fit = _replaced(text, _UNFIT if self.neutralise else _SURROGATES)
        kept = trusted
        if walk.form in (_Form.HARMLESS, _Form.HARD):
            # The system prompt's "/no_think" must mean the same here and in a later observation's
            # history.
            kept = [*trusted, *(one.span() for one in self.controls.switches.finditer(fit))]
        if walk.form is _Form.HARMLESS:
            fit = _outside(fit, kept, self._stand_ins)
        places = self._mark_places(fit)
        if self._search.is_in(fit):
            places += [
                start + 1
                for start, end in self._search.find(fit)
                if not _is_within(start, end, trusted) or fit[start:end] in self._media.names
            ]
        if self._needs_hard(fit, places, walk, parts or [text]):
            places += [
                found.end()
                for found in _PUNCTUATION.finditer(fit)
                if not _is_within(*found.span(), kept)
            ]
        return fit, places

    def _needs_hard(
        self, fit: str, places: Sequence[int], walk: _Pass, parts: Sequence[str]
    ) -> bool:
        """Return whether breaking a text only at its tokens would leave some."""
        is_hard = walk.form in (_Form.HARD, _Form.HARDEST)
        if not (is_hard or self._has_hidden):
            return False  # the usual case
        broken = self._broken(fit, places)
        return (is_hard and self._may_join([fit, broken, *parts])) or (
            self._has_hidden and self.controls.is_hidden_in(broken)
        )

    def _mark_places(self, text: str) -> list[int]:
        return [
            found.start() + 1
            for mark in self._marks
            if mark in text
            for found in re.finditer(re.escape(mark), text)
        ]

    def _broken(self, text: str, places: Iterable[int]) -> str:
        """Return a text with the breaking character inserted at the given positions."""
        return self.controls.breaker.join(split(text, places))


def _replaced(text: str, table: Mapping[int, str]) -> str:
    """Replace characters one by one; fast for texts without any of them."""
    if 0 in table and "\0" in text:
        text = text.replace("\0", table[0])
    if text.isascii():
        return text
    return text if _is_encodable(text) else text.translate(table)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _outside(text: str, trusted: Ranges, table: Mapping[int, str]) -> str:
    """Replace characters outside the trusted ranges."""
    pieces: list[str] = []
    position = 0
    for start, end in sorted((one[0], one[1]) for one in trusted):
        pieces += [text[position:start].translate(table), text[max(start, position) : end]]
        position = max(position, end)
    return "".join([*pieces, text[position:].translate(table)])


def _is_within(start: int, end: int, ranges: Ranges) -> bool:
    return any(first <= start and end <= last for first, last in ranges)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401  # JSON data
    """Return JSON data with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return {
            change(key) if isinstance(key, str) else key: _mapped(item, change)
            for key, item in entries.items()
        }
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in cast("Sequence[Any]", value)]
    return value
