"""Accepted spellings of an answer: the exact strings that a grader compares with.

A grader that lower-cases and drops punctuation and articles (as the Search-R1 protocol does) need
not see more; one that compares exactly is served as well.
"""

import functools
import unicodedata
from collections.abc import Iterable
from typing import Final

from envkit_search.words import raw_words

COUNTRY_ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "Aland Islands": ("Åland", "Åland Islands"),
    "Bahamas": ("The Bahamas",),
    "Brunei": ("Brunei Darussalam",),
    "Cabo Verde": ("Cape Verde",),
    "China": ("People's Republic of China",),
    "Cocos Islands": ("Cocos (Keeling) Islands", "Keeling Islands"),
    "Czechia": ("Czech Republic",),
    "Democratic Republic of the Congo": ("DR Congo", "DRC", "Congo-Kinshasa"),
    "Eswatini": ("Swaziland",),
    "Gambia": ("The Gambia",),
    "Hong Kong": ("Hong Kong SAR",),
    "Iran": ("Islamic Republic of Iran",),
    "Ivory Coast": ("Côte d'Ivoire", "Cote d'Ivoire"),
    "Kyrgyzstan": ("Kyrgyz Republic",),
    "Laos": ("Lao PDR",),
    "Macao": ("Macau",),
    "Micronesia": ("Federated States of Micronesia",),
    "Myanmar": ("Burma",),
    "Netherlands": ("The Netherlands", "Holland"),
    "North Korea": ("Democratic People's Republic of Korea", "DPRK"),
    "North Macedonia": ("Macedonia",),
    "Palestinian Territory": ("Palestine", "State of Palestine", "Palestinian Territories"),
    "Republic of the Congo": ("Congo-Brazzaville", "Congo Republic"),
    "Russia": ("Russian Federation",),
    "Saint Martin": ("Saint-Martin",),
    "Slovakia": ("Slovak Republic",),
    "South Korea": ("Republic of Korea", "Korea, Republic of"),
    "Svalbard and Jan Mayen": ("Svalbard",),
    "Syria": ("Syrian Arab Republic",),
    "Taiwan": ("Republic of China",),
    "Timor Leste": ("Timor-Leste", "East Timor"),
    "Turkey": ("Türkiye",),
    "U.S. Virgin Islands": ("US Virgin Islands", "United States Virgin Islands"),
    "United Arab Emirates": ("UAE", "The United Arab Emirates"),
    "United Kingdom": ("UK", "U.K.", "Great Britain", "Britain"),
    "United States": ("USA", "US", "U.S.", "U.S.A.", "United States of America"),
    "Vietnam": ("Viet Nam",),
}
"""Other names of a country as the table spells it; none of them is another country's name."""

Spellings = tuple[str, ...]
"""The canonical answer first."""


def text_spellings(text: str, others: tuple[str, ...] = ()) -> Spellings:
    """Return the text, the other spellings, and each without accents."""
    if not others and text.isascii():
        return (text,)
    accepted = [text, *others]
    accepted += [_without_accents(spelling) for spelling in accepted]
    return tuple(dict.fromkeys(accepted))


def country_spellings(name: str) -> Spellings:
    """Return the name of a country and its other names."""
    return text_spellings(name, COUNTRY_ALIASES.get(name, ()))


def number_spellings(number: int) -> Spellings:
    """Return the number without and with separators of thousands."""
    return tuple(dict.fromkeys((str(number), f"{number:,}")))


def prefixed_spellings(prefix: str, text: str) -> Spellings:
    """Return the text with and without its prefix, such as +47 and 47."""
    return (prefix + text, text)


def gives_away(question: str, answers: Iterable[str]) -> bool:
    """Return whether a spelling of the answer stands in the question, word for word."""
    asked = _padded(question)
    return any(_padded(answer) in asked for answer in answers)


@functools.lru_cache(maxsize=16384)
def _padded(text: str) -> str:
    return f" {' '.join(raw_words(text))} "


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))
