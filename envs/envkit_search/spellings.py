"""Accepted spellings of an answer: the exact strings that a grader compares with.

They suffice both for graders that compare exactly and for graders like Search-R1's, which
lower-case and drop punctuation and articles.
"""

import functools
import unicodedata
from collections.abc import Iterable

from envkit_search.aliases import CAPITALS, COUNTRIES, CURRENCIES, ELEMENTS
from envkit_search.words import folded, raw_words

Spellings = tuple[str, ...]
"""Accepted spellings, the canonical answer first."""


def text_spellings(text: str, others: tuple[str, ...] = ()) -> Spellings:
    """Return the text, the other spellings, and each without accents."""
    if not others and text.isascii():
        return (text,)
    accepted = [text, *others]
    accepted += [_without_accents(spelling) for spelling in accepted]
    return tuple(dict.fromkeys(accepted))


def country_spellings(name: str) -> Spellings:
    """Return the name of a country and its other names."""
    return text_spellings(name, COUNTRIES.get(name, ()))


def capital_spellings(name: str) -> Spellings:
    """Return the name of a capital and its other names."""
    return text_spellings(name, CAPITALS.get(name, ()))


def currency_spellings(name: str) -> Spellings:
    """Return the name of a currency and its other names."""
    return text_spellings(name, CURRENCIES.get(name, ()))


def element_spellings(name: str) -> Spellings:
    """Return the name of a chemical element and its other spelling."""
    return text_spellings(name, ELEMENTS.get(name, ()))


def number_spellings(number: int) -> Spellings:
    """Return the number without and with separators of thousands."""
    return tuple(dict.fromkeys((str(number), f"{number:,}")))


def prefixed_spellings(prefix: str, text: str) -> Spellings:
    """Return the text with and without its prefix, such as +47 and 47."""
    return (prefix + text, text)


def gives_away(question: str, answers: Iterable[str]) -> bool:
    """Return whether the question contains a spelling of the answer, word for word."""
    asked = folded(question)
    # Usually its letters do not occur at all, which needs no word splitting.
    return any(
        padded(answer).split(" ", 2)[1] in asked and padded(answer) in padded(question)
        for answer in answers
    )


@functools.lru_cache(maxsize=16384)
def padded(text: str) -> str:
    """Return the words of a text between spaces, so that `in` finds whole words."""
    return f" {' '.join(raw_words(text))} "


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))
