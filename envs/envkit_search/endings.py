"""The last part of a question: the fact asked about a country."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from envkit_search import spellings
from envkit_search.facts import Country, FactTable

MAX_COMPARED_NEIGHBOURS: Final = 5
"""Maximum pages to read for the largest neighbour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer for one country, and the pages that lead to it."""

    accepted: spellings.Spellings
    titles: tuple[str, ...] = ()
    """Pages to read after the country's, in order; the last one says the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A question about a country."""

    key: str
    text: str
    """Question with {} for the phrase that names the country."""
    hops: int
    """Relations to follow from the country's page, counting that page."""
    answers: dict[str, Answer]
    """Answers by country code; countries without the fact are omitted."""


def country_endings(table: FactTable) -> list[Ending]:
    """Return all endings, the shortest first."""
    direct = [_direct(table, key, text, find) for key, (text, find) in _ATTRIBUTES.items()]
    return [*direct, *_capital_endings(table), *_neighbour_endings(table)]


_ATTRIBUTES: Final[dict[str, tuple[str, Callable[[Country], spellings.Spellings | None]]]] = {
    "capital": (
        "What is the capital of {}?",
        lambda country: spellings.capital_spellings(country.capital),
    ),
    "currency": (
        "What is the name of the currency of {}?",
        lambda country: (
            spellings.currency_spellings(country.currency) if country.currency else None
        ),
    ),
    "currency_code": (
        "What is the three-letter currency code of {}?",
        lambda country: (country.currency_code,) if country.currency_code else None,
    ),
    "continent": ("On which continent is {}?", lambda country: (country.continent,)),
    "dialling_code": (
        "What is the international dialling code of {}?",
        lambda country: (
            spellings.prefixed_spellings("+", country.dialling_code)
            if country.dialling_code
            else None
        ),
    ),
    "domain": (
        "What is the internet top-level domain of {}?",
        lambda country: (
            spellings.prefixed_spellings(".", country.domain[1:]) if country.domain else None
        ),
    ),
    "area": (
        "What is the area, in square kilometres, of {}?",
        lambda country: spellings.number_spellings(country.area),
    ),
    "population": (
        "What is the population of {}?",
        lambda country: spellings.number_spellings(country.population),
    ),
}


def _direct(
    table: FactTable, key: str, text: str, find: Callable[[Country], spellings.Spellings | None]
) -> Ending:
    answers = {
        country.code: Answer(accepted=accepted)
        for country in table.countries
        if (accepted := find(country)) is not None
    }
    return Ending(key=key, text=text, hops=1, answers=answers)


def _capital_endings(table: FactTable) -> Iterator[Ending]:
    capitals = {
        country.code: city
        for country in table.countries
        if (city := table.capital_city(country)) is not None
    }
    yield Ending(
        key="capital.population",
        text="What is the population of the capital city of {}?",
        hops=2,
        answers={
            code: Answer(accepted=spellings.number_spellings(city.population), titles=(city.title,))
            for code, city in capitals.items()
        },
    )
    yield Ending(
        key="capital.time_zone",
        text="In which time zone is the capital city of {}?",
        hops=2,
        answers={
            code: Answer(accepted=spellings.text_spellings(city.time_zone), titles=(city.title,))
            for code, city in capitals.items()
        },
    )


def _neighbour_endings(table: FactTable) -> Iterator[Ending]:
    for key, adjective, noun, sign in (
        ("largest", "largest", "area", 1),
        ("smallest", "smallest", "area", -1),
        ("most_populous", "largest", "population", 1),
        ("least_populous", "smallest", "population", -1),
    ):
        winners: dict[str, tuple[Country, tuple[str, ...]]] = {}
        for country in table.countries:
            found = _extreme_neighbour(table, country, noun, sign)
            if found is not None:
                winners[country.code] = found
        yield Ending(
            key=key,
            text=f"Which country or territory with a land border to {{}} has the {adjective} "
            f"{noun} of all that have one?",
            hops=2,
            answers={
                code: Answer(accepted=spellings.country_spellings(winner.name), titles=titles)
                for code, (winner, titles) in winners.items()
            },
        )
        phrase = (
            f"the country or territory that has the {adjective} {noun} of all with a land border "
            "to {}"
        )
        for attribute in ("capital", "currency_code", "dialling_code", "domain"):
            text, find = _ATTRIBUTES[attribute]
            yield Ending(
                key=f"{key}.{attribute}",
                text=text.format(phrase),
                hops=3,
                answers={
                    code: Answer(accepted=accepted, titles=titles)
                    for code, (winner, titles) in winners.items()
                    if (accepted := find(winner)) is not None
                },
            )


def _extreme_neighbour(
    table: FactTable, country: Country, noun: str, sign: int
) -> tuple[Country, tuple[str, ...]] | None:
    """Return the neighbour and the pages to compare, its own last; None without a clear one."""
    around = table.neighbours(country)
    if not 2 <= len(around) <= MAX_COMPARED_NEIGHBOURS:
        return None
    sizes = {
        other.code: sign * (other.area if noun == "area" else other.population) for other in around
    }
    around.sort(key=lambda other: sizes[other.code])
    if sizes[around[-1].code] == sizes[around[-2].code]:
        return None
    return around[-1], tuple(other.title for other in around)
