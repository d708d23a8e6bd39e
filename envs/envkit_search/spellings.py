"""Accepted spellings of an answer: the exact strings that a grader compares with.

They suffice both for graders that compare exactly and for graders like Search-R1's, which
lower-case and drop punctuation and articles.

Aliases of places, currencies and elements are accepted as answers and appear on no page. They stand
by the name in the fact table; a name with accents needs no entry without them.
"""

import functools
import unicodedata
from collections.abc import Iterable
from typing import Final

from envkit_search.words import folded, raw_words

Aliases = dict[str, tuple[str, ...]]

COUNTRIES: Final[Aliases] = {
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
"""No alias is another country's name."""

CAPITALS: Final[Aliases] = {
    "Asuncion": ("Asunción",),
    "Astana": ("Nur-Sultan",),
    "Bern": ("Berne",),
    "Bogota": ("Bogotá",),
    "Brasilia": ("Brasília",),
    "Chisinau": ("Chișinău",),
    "Ciudad de la Paz": ("Oyala",),
    "El-Aaiun": ("Laayoune", "El Aaiún"),
    "Hagatna": ("Hagåtña",),
    "Kyiv": ("Kiev",),
    "Lome": ("Lomé",),
    "Luxembourg": ("Luxembourg City",),
    "Macao": ("Macau",),
    "Male": ("Malé",),
    "Mexico City": ("Ciudad de México",),
    "Nay Pyi Taw": ("Naypyidaw", "Naypyitaw"),
    "Noumea": ("Nouméa",),
    "Port-aux-Francais": ("Port-aux-Français",),
    "Pristina": ("Prishtina", "Priština"),
    "Reykjavik": ("Reykjavík",),
    "Saint Helier": ("St Helier", "St. Helier"),
    "San Jose": ("San José",),
    "Sanaa": ("Sana'a",),
    "Sao Tome": ("São Tomé",),
    "St Peter Port": ("St. Peter Port", "Saint Peter Port"),
    "St. George's": ("Saint George's", "St George's"),
    "St. John's": ("Saint John's", "St John's"),
    "Tarawa": ("South Tarawa",),
    "Torshavn": ("Tórshavn",),
    "Ulaanbaatar": ("Ulan Bator",),
    "Washington": ("Washington, D.C.", "Washington DC", "Washington D.C."),
    "Yaounde": ("Yaoundé",),
}

CURRENCIES: Final[Aliases] = {
    "Bolivar Soberano": ("Bolivar", "Bolívar", "Sovereign bolivar"),
    "Colon": ("Colón",),
    "Cordoba": ("Córdoba",),
    "Guarani": ("Guaraní",),
    "Marka": ("Convertible mark", "Convertible marka"),
    "Riels": ("Riel",),
    "Ruble": ("Rouble",),
    "Belarusian ruble": ("Ruble", "Rouble", "Belarusian rouble"),
    "Tugrik": ("Tögrög", "Togrog"),
    "Yuan Renminbi": ("Yuan", "Renminbi"),
    "Zloty": ("Złoty",),
}

ELEMENTS: Final[Aliases] = {
    "Aluminum": ("Aluminium",),
    "Cesium": ("Caesium",),
    "Sulfur": ("Sulphur",),
}


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
