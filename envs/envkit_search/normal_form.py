"""The normal form of an answer: one for all ways to type it, another for another answer.

Typography makes no difference: quotes, dashes, full-width and presentation forms, fractions, digits
of other scripts, kinds of spaces, case, emphasis, articles, and punctuation around words. Whatever
may carry meaning stays: signs, decimal points, `12:30`, `1/2`, `%`, currencies, `O-`, `C++`, `C#`,
`10²`. All work is linear in the length of the text.
"""

import functools
import re
import unicodedata
from typing import Final

from envkit_search.words import spaced_characters

_RAISED: Final = "\x01"
"""Stands before a superscript digit or sign."""
_FORMS: Final = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032`\u00b4\u02b9\u02bb\u02bc\u02be\u02bf", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
    **dict.fromkeys("\u300c\u300d\u300e\u300f\u301d\u301e\u301f", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\u2043\u02d7", "-"),
    **dict.fromkeys("\u2014\u2015", "\u2014"),
    **dict.fromkeys("\u2044\u2215", "/"),
    **dict.fromkeys("\u00ba\u02da", "\u00b0"),
    **dict.fromkeys("\u2122\u00ae\u00a9\u2120", ""),
    "\u066a": "%", "\u066b": ".", "\u066c": ",", "\u3002": ".", "\u2236": ":", "\u266f": "#",
    "&": " and ",
}  # fmt: skip
"""Quotes and primes, CJK quotes, hyphens and minus, long dashes, slashes, degrees, trade marks;
Arabic percent sign and separators, the ideographic full stop, the ratio and sharp signs."""
_RAISED_SIGNS: Final = "0123456789+-"
_LONGEST: Final = 4
"""A character that stands for more, such as a whole phrase in Arabic, stays as it is."""
_PUNCTUATION: Final = re.compile(r"[^\w\s^/%@\u00a7\u2030\u2031=<>~|$]|_")
"""Marks that may be ignored; the listed ones never are."""
_DASHES: Final = re.compile("--+")
_RANGE: Final = re.compile(r"(?<=\d) ?[-\u2014] ?(?=\d)")
_LOOSE_SIGN: Final = re.compile(r"^- (?=\d)")
_OPENS: Final = {mark: re.compile(rf"(?<!\w)[{mark}](?=\S)") for mark in ("*", "'", '"')}
_RUN: Final = re.compile(f"(?:{_RAISED}.)+")
_THOUSANDS: Final = re.compile(r"(?<![\w.,'])[1-9]\d{0,2}(?:(?:,\d{3})+|(?:'\d{3})+|(?: \d{3})+)"
                               r"(?![\w']|,\d)")  # fmt: skip
_UNIT: Final = re.compile(r"(?<=\d)(?=[^\W\d_])")
_ARTICLE: Final = re.compile(r"\b(?:an|the) (?=\S)")
_LEADING: Final = re.compile(r"^(?:a (?=\S)|\+(?=\d))")
_AMOUNT: Final = re.compile(r"(?P<whole>-?[^\w\s-]?\d+)\.(?P<rest>\d+)(?![.,:]?\d)")
_NUMBER: Final = re.compile(r"\.?\d")
_GAP: Final = re.compile(r"(?<=\d) (?=[%‰°])|(?<=[$€£¥₹₩]) (?=\d)")
_SYMBOL: Final = re.compile(r" ?([^\w\s]) ?")


class _Typing(dict[int, str | None]):
    """For `str.translate`: one character for all typographic forms of it."""

    def __missing__(self, code: int) -> str | None:
        self[code] = found = self._plain(chr(code))
        return found

    def _plain(self, letter: str) -> str | None:
        if letter in _FORMS:
            return _FORMS[letter]
        kind, parts = unicodedata.category(letter), unicodedata.decomposition(letter)
        if kind == "Cf" or unicodedata.name(letter, "").startswith("VARIATION SELECTOR"):
            return None
        if kind in ("Cc", "Cs", "Zs", "Zl", "Zp"):
            return " "
        if kind == "Nd":
            return str(unicodedata.decimal(letter))
        if not parts.startswith("<"):
            return letter
        tag, *codes = parts.split()
        plain = "".join(self[int(code, 16)] or "" for code in codes)
        if tag == "<super>" and plain in _RAISED_SIGNS:
            return _RAISED + plain
        if len(plain.strip()) > _LONGEST:
            return letter
        return f" {plain}" if tag == "<fraction>" else plain


_TYPING: Final = _Typing()


def normal_words(text: str) -> str:
    """Return a text in normal words with a space between two; a part of it gives its words."""
    plain = _unwrapped(unicodedata.normalize("NFC", text.translate(_TYPING)).casefold().strip())
    plain = _RUN.sub(_raised, plain)
    plain = _THOUSANDS.sub(lambda found: re.sub("[,' ]", "", found[0]), _UNIT.sub(" ", plain))
    plain = _LOOSE_SIGN.sub("-", _RANGE.sub("-", _DASHES.sub("\u2014", plain)))
    opened = frozenset(mark for mark, opens in _OPENS.items() if opens.search(plain))
    kept = _PUNCTUATION.sub(lambda mark: _kept(mark, opened), plain)
    return _ARTICLE.sub("", _GAP.sub("", " ".join(spaced_characters(kept).split())))


@functools.lru_cache(maxsize=256)
def normalize(text: str) -> str:
    """Return the normal form of a whole answer, in words.

    At its start, "a", a plus, and zeros at the end of a decimal number make no difference.
    """
    words = _LEADING.sub("", normal_words(text))
    amount = _AMOUNT.match(words)
    if amount is None:
        return words
    rest = amount["rest"].rstrip("0")
    return amount["whole"] + (f".{rest}" if rest else "") + words[amount.end() :]


def equals(answer: str, accepted: str) -> bool:
    """Return whether two answers have the same normal form; spaces around symbols do not count."""
    key = _key(accepted)
    if not key:  # such as "!!!"
        return answer.strip().casefold() == accepted.strip().casefold()
    return _key(answer) == key


def _unwrapped(text: str) -> str:
    """Return a text without quotes or emphasis around all of it."""
    inner = text.rstrip(".!? ")
    while len(inner) > 2 and inner[0] == inner[-1] and inner[0] in _OPENS:
        inner = inner[1:-1]
        text = inner
    return text


def _raised(run: re.Match[str]) -> str:
    """Return superscripts as a power, or the sign of an ion or a blood group as it is."""
    text = run[0].replace(_RAISED, "")
    return text if text in "+-" else f"^{text}"


@functools.lru_cache(maxsize=256)
def _key(text: str) -> str:
    return _SYMBOL.sub(r"\1", normalize(text))


def _kept(found: re.Match[str], opened: frozenset[str]) -> str:
    """Return what stays of a mark: itself, nothing, or a space where it separates words."""
    mark, text = found[0], found.string
    before = text[found.start() - 1] if found.start() else " "
    after = text[found.end()] if found.end() < len(text) else " "
    is_word = before.isalpha() and after.isalpha()
    if before.isdigit() and after.isdigit() and mark in ".,:'-\u00b7":
        return mark
    match mark:
        case "-":
            is_sign = _NUMBER.match(text, found.end()) is not None
            is_ending = before.isalnum() and not after.isalnum()
            is_kept = is_sign or is_ending
        case "'" | '"':
            is_kept, is_word = before.isdigit() and mark not in opened, True
        case "*" | "#":
            is_kept = before.isalnum() and mark not in opened
        case "_":
            is_kept = before.isalnum() and after.isalnum()
        case ".":
            if after.isdigit() and not before.isalnum() and before != ".":
                return "0."
            is_kept = False
        case _:
            kind = unicodedata.category(mark)
            is_kept = kind[0] == "M" or (kind[0] == "S" and kind != "Sk")
    if is_kept:
        return mark
    return "" if is_word and mark not in ",;:" else " "
