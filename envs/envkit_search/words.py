"""Tokenise texts for the index: folded, without stop words, plurals stemmed.

The module imports nothing from envkit, so the build script of the facts can share it.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_STOP_WORDS: Final = """
a an and are as at be been but by did do does for from had has have how if in is it its many much
not of on or than that the their there these they this those to was were what when where which who
whom whose why will with
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
_WORD: Final = re.compile(r"\w+")
_MIN_PLURAL_LETTERS: Final = 5
"""Shorter words keep their s: "gas", "Oslo's"."""


def folded(text: str) -> str:
    """Return a text in lower case, accents removed."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return text.lower()


def raw_words(text: str) -> list[str]:
    """Return the words of a text in lower case, accents removed, stop words included."""
    return _WORD.findall(folded(text))


def stem(word: str) -> str:
    """Return the word without its plural s."""
    if len(word) >= _MIN_PLURAL_LETTERS and word[-1] == "s" and word[-2] != "s":
        return word[:-1]
    return word


def _searched(text: str) -> Iterator[str]:
    return (stem(word) for word in raw_words(text) if word not in STOP_WORDS)


def tokenise(text: str) -> list[str]:
    """Return the search words; empty for a text of stop words or without letters."""
    return list(_searched(text))


def title_key(title: str) -> str:
    """Return the key for matching a query to a title: the same words in the same order."""
    return " ".join(_searched(title))
