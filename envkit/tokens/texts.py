"""What text inside a message may contain: no marks, no placeholders, and control tokens on request.

A literal placeholder in a text would be counted as a picture that is not there, so it is refused.
With `sanitize`, every control token in user and tool text is broken by an invisible character: the
model reads nearly the same words, and the tokenizer sees no token. System text stays as it is: it
is the author's. So does assistant text, which is the model's own, but a placeholder that the model
spelled out is broken there: a bad reply is no error.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from envkit.errors import TemplateError
from envkit.tokens.template import ChatTemplate

_BREAKERS: Final = ("\u200b", "\u2060", " ")
"""Zero-width space, word joiner; a plain space where a tokenizer drops the others."""


class TextPolicy:
    """Checks the text of messages, and neutralises it where that was asked for."""

    def __init__(
        self,
        template: ChatTemplate,
        *,
        marks: Sequence[str],
        media: Iterable[str],
        sanitize: bool,
    ) -> None:
        self._marks = tuple(marks)
        self._media = tuple(media)
        self._forbidden = (*self._marks, *self._media)
        self.sanitize = sanitize
        self._by_role: dict[str, Callable[[str], str]] = {
            "system": self._checked,
            "user": self.clean,
            "tool": self.clean,
            "assistant": self._broken_media,
        }
        self._breaking = _Breaking(template, self._control_tokens(template)) if sanitize else None
        self._media_breaking = _Breaking(template, self._media)

    def check(self, text: str) -> None:
        """Refuse text that would corrupt the ids.

        Raises:
            TemplateError: The text contains a mark or a placeholder token.
        """
        for word in self._forbidden:
            if word in text:
                self._refuse(word)

    def clean(self, text: str) -> str:
        """Return the text, its control tokens broken if that is the policy; checked.

        Raises:
            TemplateError: As `check`.
        """
        if self._breaking is not None:
            text = self._breaking.apply(text)
        self.check(text)
        return text

    def apply(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return checked messages, user and tool text cleaned.

        Raises:
            TemplateError: As `check`, an unknown role or part, or a picture outside a user message.
        """
        return [self._apply(entry) for entry in messages]

    def _apply(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        role = entry.get("role")
        if role not in ("system", "user", "assistant", "tool"):
            raise TemplateError(f"a role must be system, user, assistant or tool, got {role!r}")
        result = dict(entry)
        transform = self._by_role[role]
        content: Any = entry.get("content")
        if isinstance(content, str):
            result["content"] = transform(content)
        elif content is not None:
            result["content"] = [self._part(part, role, transform) for part in content]
        return result

    def _checked(self, text: str) -> str:
        self.check(text)
        return text

    def _control_tokens(self, template: ChatTemplate) -> set[str]:
        return {*self._media, *_control_tokens(template)}

    def _broken_media(self, text: str) -> str:
        return self._media_breaking.apply(text)

    @staticmethod
    def _part(
        part: Mapping[str, Any], role: str, transform: Callable[[str], str]
    ) -> Mapping[str, Any]:
        kind = part.get("type")
        if kind == "text":
            return {**part, "text": transform(part["text"])}
        if kind != "image":
            raise TemplateError(f"a part must be of type 'text' or 'image', got {kind!r}")
        if role != "user":
            raise TemplateError(
                f"images must travel in a 'user' message, got one in role {role!r}: chat templates "
                "drop them elsewhere. Send the tool's text as 'tool' and its image as 'user'"
            )
        return part

    def _refuse(self, word: str) -> None:
        if word in self._marks:
            raise TemplateError("a message contains the codec's own random mark; make a new codec")
        raise TemplateError(
            f"a message contains {word!r}, the model's placeholder for an image or video, as text: "
            "it would be counted as a picture. Send pictures as image parts, or make the codec "
            "with sanitize=True to neutralise such text"
        )


class _Breaking:
    """Breaks control tokens so that the tokenizer no longer sees them."""

    def __init__(self, template: ChatTemplate, names: Iterable[str]) -> None:
        longest_first = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._breaker = _breaker(template, longest_first)

    def apply(self, text: str) -> str:
        while True:  # a token inside a longer one appears once the longer one is broken
            broken = self._pattern.sub(self._break, text)
            if broken == text:
                return text
            text = broken

    def _break(self, match: re.Match[str]) -> str:
        word = match.group()
        return word[:1] + self._breaker + word[1:]


def _control_tokens(template: ChatTemplate) -> set[str]:
    """Return special tokens, and added tokens that the template itself writes."""
    special: Any = getattr(template.tokenizer, "all_special_tokens", None) or ()
    decoder: Any = getattr(template.tokenizer, "added_tokens_decoder", None) or {}
    names = {str(name) for name in special}
    names |= {token.content for token in decoder.values() if getattr(token, "special", False)}
    names |= {name for name in template.added.values() if name in template.text}
    return {name for name in names if len(name) > 1 and not name.isspace()}


def _breaker(template: ChatTemplate, names: Sequence[str]) -> str:
    identities = {name: identity for identity, name in template.added.items()}
    for candidate in _BREAKERS:
        texts = [f"{name[:1]}{candidate}{name[1:]}" for name in names]
        if not any(
            identities.get(name) in template.encode(text)
            for name, text in zip(names[:64], texts, strict=False)
        ):
            return candidate
    raise TemplateError("no character breaks this tokenizer's control tokens; use sanitize=False")
