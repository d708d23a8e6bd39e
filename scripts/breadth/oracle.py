"""Find what a full render by transformers puts after a reply, without using envkit."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conversations import Tools
from corpus import Published

OBSERVED = "Oq7Vt"
_OBSERVED = re.compile(r"Oq\d+v\d+Vt")


@dataclass(frozen=True)
class Truth:
    """The ids after a reply's marker."""

    closer: int
    tail: list[int]
    """The ids after the closer."""
    cut: str
    """The text after the marker, if it starts with only what closes a plain reply."""
    is_open: bool = False
    """Nothing closes the reply: the model samples the closer, and a render has none."""


class Oracle:
    """One template, as transformers renders it."""

    def __init__(self, published: Published) -> None:
        self.tokenizer = published.tokenizer
        self.stops = published.stops
        self.stop_ids = [self.tokenizer.convert_tokens_to_ids(name) for name in self.stops]
        self._rendered: dict[str, str | None] = {}
        self.listed = not self._shows("Oq7Vt")
        """Whether content must be a list of parts."""

    def _shows(self, content: str) -> bool:
        try:
            return OBSERVED in self._render([{"role": "user", "content": content}], None)
        except Exception:  # noqa: BLE001  # templates raise anything
            return False

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools, is_open: bool = True
    ) -> str:
        return self.tokenizer.apply_chat_template(
            [dict(entry) for entry in messages],
            tokenize=False,
            add_generation_prompt=is_open,
            tools=tools,
        )

    def _written(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        entry = {key: value for key, value in entry.items() if key != "trusted"}
        content = entry.get("content")
        if self.listed and isinstance(content, str):
            return {**entry, "content": [{"type": "text", "text": content}]}
        return entry

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools, is_open: bool = True
    ) -> str | None:
        """Return the text of a conversation, or None if the template refuses it."""
        key = repr((messages, tools is None, is_open))
        if key not in self._rendered:
            try:
                text = self._render([self._written(entry) for entry in messages], tools, is_open)
            except Exception:  # noqa: BLE001  # templates raise anything
                text = None
            self._rendered[key] = text
        return self._rendered[key]

    def accepts(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> bool:
        """Return whether the template renders the messages without dropping the last ones."""
        text = self.render(messages, tools)
        if text is None:
            return False
        last = [m["role"] for m in messages[::-1]].index("assistant") if len(messages) > 2 else 0
        return all(
            self._place(messages, len(messages) - 1 - i, tools, text) >= 0 for i in range(last)
        )

    def _place(
        self, messages: Sequence[Mapping[str, Any]], index: int, tools: Tools, text: str
    ) -> int:
        """Return the position of a rendered observation, or -1 if it is dropped."""
        word = _OBSERVED.search(repr(messages[index]["content"]))
        if word is not None:
            return text.rfind(word[0])
        marked = {**messages[index], "content": OBSERVED}  # it is empty
        swapped = self.render([*messages[:index], marked, *messages[index + 1 :]], tools)
        return -1 if swapped is None else swapped.rfind(OBSERVED)

    def takes_turns(self) -> bool:
        """Return whether a reply follows its generation prompt.

        Templates of guard and judge models put a whole conversation into one user turn instead.
        """
        user, marked = {"role": "user", "content": "u"}, {"role": "assistant", "content": OBSERVED}
        opened, closed = (self.render([user], None, opened) or "" for opened in (True, False))
        whole = self.render([user, marked, user], None) or ""
        return _shared(opened, whole) >= len(closed) + (opened != closed)

    def _ends_with_reply(self, after: str) -> bool:
        """Return whether a final reply ends with its text or with a stop token.

        Anything after a reply in history then belongs to the next message.
        """
        chat = [{"role": "user", "content": "u"}, {"role": "assistant", "content": OBSERVED}]
        last = (self.render(chat, None, is_open=False) or "").rpartition(OBSERVED)[2].strip()
        return last == "" or (last in self.stops and not after.startswith(last))

    def truth(
        self,
        history: Sequence[Mapping[str, Any]],
        observations: Sequence[Mapping[str, Any]],
        tools: Tools,
        marker: str,
    ) -> Truth | None:
        """Return the ids after a reply, or None if the template does not mark the reply's end."""
        text = self.render([*history, *observations], tools)
        if text is None or (place := text.rfind(marker)) < 0:
            return None
        place += len(marker)
        limit = self._place([*history, *observations], len(history), tools, text)
        ids = list(self.tokenizer.encode(text, add_special_tokens=False))
        position = place
        # ignore control tokens before the marker, which occur equally often in both
        earlier = sum(text.count(name, 0, place) for name in self.stops)
        ends = [index for index, identity in enumerate(ids) if identity in self.stop_ids]
        for index in ends[earlier:]:
            name = self.stops[self.stop_ids.index(ids[index])]
            position = text.find(name, position)
            if limit >= 0 and position >= limit:
                return None
            return Truth(ids[index], ids[index + 1 :], text[place:])
        rest = list(self.tokenizer.encode(text[place:], add_special_tokens=False))
        is_special = bool(rest) and rest[0] in self.tokenizer.added_tokens_decoder
        if not is_special or not self._ends_with_reply(text[place:]):
            return None
        return Truth(self.stop_ids[0], rest, "", is_open=True)


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
