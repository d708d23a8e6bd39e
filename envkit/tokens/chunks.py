"""Token ids of a long text from those of its parts, which are remembered.

A fast tokenizer takes the added tokens out of a text and encodes what is between them independently
(Hugging Face tokenizers: `AddedVocabulary::extract_and_normalize`), so a text can be cut before an
added token. A prompt that repeats most of an earlier one, as those of agents that rewrite their
history and of a group do, then costs only what is new in it.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, product
from typing import Any, Final

Encode = Callable[[str], Sequence[int]]
_MAX_CHARACTERS: Final = 2_000_000
"""Characters of the parts in each half of the memory; ids take about as many bytes."""


class Chunks:
    """Encodes text in parts that begin with one of some added tokens."""

    def __init__(self, encode: Encode, marks: Iterable[str]) -> None:
        """Take the tokenizer.

        Args:
            encode: Turns text into ids.
            marks: Names of added tokens before which text may be cut. Without any, text is encoded
                in one piece, and nothing is remembered.
        """
        self._encode = encode
        # A regular expression takes the first alternative that fits, and one name may begin
        # another.
        names = sorted(marks, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, names))) if names else None
        # Two halves: when the newer one is full, the older one is forgotten.
        self._newer: dict[str, array[int]] = {}
        self._older: dict[str, array[int]] = {}
        self._characters = 0

    def encode(self, text: str) -> list[int]:
        """Turn text into ids."""
        if self._marks is None:
            return list(self._encode(text))
        places = [found.start() for found in self._marks.finditer(text)]
        ids: list[int] = []
        for start, end in pairwise([0, *places, len(text)]):
            if start < end:
                ids += self._part(text[start:end])
        return ids

    def _part(self, part: str) -> "array[int]":
        known = self._newer.get(part)
        if known is not None:
            return known
        known = self._older.get(part)
        if known is None:
            known = array("i", self._encode(part))
        if self._characters + len(part) > _MAX_CHARACTERS:
            self._older, self._newer, self._characters = self._newer, {}, 0
        self._newer[part] = known  # threads may both add it, which only counts it twice
        self._characters += len(part)
        return known


def cutting_marks(tokenizer: Any, encode: Encode, sample: str, texts: Sequence[str]) -> list[str]:  # noqa: ANN401  # any tokenizer
    """Return the added tokens of a text before which any text may be cut.

    Args:
        tokenizer: A Hugging Face tokenizer; others have no such tokens.
        encode: Turns text into ids.
        sample: A rendered conversation.
        texts: Texts with which each token is tried.
    """
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", None) or {}
    names = [one.content for one in added.values()]
    return [
        token.content
        for token in added.values()
        if token.content in sample
        # Such a token depends on the text before it.
        and not (token.normalized or token.lstrip or token.single_word)
        and not any(_covers(name, token.content) for name in names)
        and all(
            [*encode(before), *encode(token.content + after)]
            == [*encode(before + token.content + after)]
            for before, after in product(texts, repeat=2)
        )
    ]


def _covers(name: str, mark: str) -> bool:
    """Return whether an added token can begin before a mark and include its beginning."""
    if mark in name[1:]:
        return True
    return any(name.endswith(mark[:n]) for n in range(1, min(len(name), len(mark))))
