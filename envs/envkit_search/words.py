"""Tokenise texts for the index by Unicode script.

- Latin: words without accents; stop words are left out, plurals stemmed.
- Scripts without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese), and Korean,
  which attaches particles: every character and every pair of neighbours. Vowel signs belong to
  their character.
- Other scripts, which inflect or attach articles (Russian, Greek, Arabic, Hindi): words and their
  three-letter parts.

The module imports nothing from envkit, so the build script of the facts can share it.
"""

import re
import unicodedata
from functools import cache
from itertools import groupby, pairwise
from typing import Final

_STOP_WORDS: Final = """
a an and are as at be been but by did do does for from had has have how if in is it its many much
not of on or than that the their there these they this those to was were what when where which who
whom whose why will with
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
_WORD: Final = re.compile(r"\w+", re.ASCII)
_MIN_PLURAL_LETTERS: Final = 5
"""Shorter words keep their s: "gas", "Oslo's"."""
_PART_LETTERS: Final = 3
_UNSPACED: Final = frozenset({
    "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO", "HANGUL",
    "THAI", "LAO", "KHMER", "MYANMAR", "TAI", "NEW",
})  # fmt: skip
"""Scripts, see `_script`. NEW is New Tai Lue."""
_OPTIONAL: Final = frozenset(("COMBINING", "ARABIC", "HEBREW", "VARIATION"))
"""Scripts whose marks may be omitted: accents, and vowel points of Arabic and Hebrew."""
_VOICED: Final = "\u3099\u309a"
"""Marks that distinguish Japanese syllables."""
_TATWEEL: Final = "\u0640"
_ZERO_WIDTH_SPACE: Final = "\u200b"


@cache
def _script(letter: str) -> str:
    """Return the first word of the Unicode name, which never changes: its script, for a letter."""
    return unicodedata.name(letter, "").partition(" ")[0]


@cache
def _is_unspaced(letter: str) -> bool:
    return _script(letter) in _UNSPACED or letter in _VOICED


class _Folding(dict[int, str | None]):
    """For `str.translate`: optional marks vanish, digits become ASCII, separators a space."""

    def __missing__(self, code: int) -> str | None:
        self[code] = found = self._fold(chr(code))
        return found

    def _fold(self, letter: str) -> str | None:
        kind = unicodedata.category(letter)
        if kind == "Nd":
            return str(unicodedata.decimal(letter))
        if kind == "Mn" and _script(letter) in _OPTIONAL and letter not in _VOICED:
            return None
        if letter == _TATWEEL or (kind == "Cf" and letter != _ZERO_WIDTH_SPACE):
            return None
        return letter if kind[0] in "LMN" or letter == "_" else " "


_FOLDING: Final = _Folding()


def folded(text: str) -> str:
    """Return a text in lower case, without accents; beyond ASCII, separators become spaces."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", text).translate(_FOLDING)
    return unicodedata.normalize("NFC", plain).casefold()


def raw_words(text: str) -> list[str]:
    """Return the folded words of a text, stop words included; unspaced text is one word."""
    text = folded(text)
    if text.isascii():
        return _WORD.findall(text)
    return ["".join(run) for word in text.split() for _, run in groupby(word, _is_unspaced)]


def spaced_characters(text: str) -> str:
    """Return a text with a space around each character of a script without spaces."""
    if text.isascii():
        return text
    found: list[str] = []
    was_unspaced = False
    for letter in text:
        if unicodedata.category(letter)[0] != "M":
            is_unspaced = _is_unspaced(letter)
            found += " " if is_unspaced or was_unspaced else ""
            was_unspaced = is_unspaced
        found.append(letter)
    return "".join(found)


def stem(word: str) -> str:
    """Return the word without its plural s."""
    if len(word) >= _MIN_PLURAL_LETTERS and word[-1] == "s" and word[-2] != "s":
        return word[:-1]
    return word


def terms_of(word: str) -> tuple[str, ...]:
    """Return the search terms of a raw word; none for a stop word."""
    if word in STOP_WORDS:
        return ()
    if word.isascii() or any(_script(letter) == "LATIN" for letter in word):
        return (stem(word),)
    if _is_unspaced(word[0]):
        characters = spaced_characters(word).split()
        return (*characters, *map("".join, pairwise(characters)))
    starts = range(len(word) - _PART_LETTERS + 1 if len(word) > _PART_LETTERS else 0)
    return (word, *(word[start : start + _PART_LETTERS] for start in starts))


def tokenise(text: str) -> list[str]:
    """Return the search terms; empty for a text of stop words or without letters."""
    return [term for word in raw_words(text) for term in terms_of(word)]


def title_key(title: str) -> str:
    """Return the key for matching a query to a title: the same words in the same order."""
    return " ".join(stem(word) for word in raw_words(title) if word not in STOP_WORDS)
