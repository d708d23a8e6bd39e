"""Questions about a country, by name or through something that identifies it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from envkit_search.endings import Ending, country_endings
from envkit_search.facts import Airport, City, Country, Element, FactTable
from envkit_search.row_templates import MAX_HOPS, Question, Template
from envkit_search.spellings import padded

_Row = TypeVar("_Row", Country, City, Airport, Element)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bridge:
    """A way to name a country without its name."""

    kind: str
    group: str
    hops: int
    """Pages to read before the country's: 1, or 0 if its own page has the clue."""
    titles: Sequence[str]
    phrases: Sequence[str]
    countries: Sequence[Country | None]
    """By row; None if the row has no country or several fit."""
    known: frozenset[str]
    """Endings that the phrase already answers."""


def bridge_templates(table: FactTable) -> list[Template]:
    """Return a template for each bridge and each ending that it does not answer."""
    endings = country_endings(table)
    told = {
        ending.key: {
            code: tuple(map(padded, answer.accepted)) for code, answer in ending.answers.items()
        }
        for ending in endings
    }
    templates = [
        _through(bridge, ending, asked, told[ending.key])
        for bridge in _bridges(table)
        for asked in [list(map(padded, bridge.phrases))]
        for ending in endings
        if bridge.hops + ending.hops <= MAX_HOPS and ending.key not in bridge.known
    ]
    return [template for template in templates if template.rows]


def _through(
    bridge: _Bridge, ending: Ending, asked: Sequence[str], told: Mapping[str, Sequence[str]]
) -> Template:
    """Return the template that names a country by the bridge and asks the ending's question.

    A question that contains its answer, word for word, is dropped.

    Args:
        bridge: The way to a country.
        ending: The question about it.
        asked: The bridge's phrases, `padded`.
        told: The ending's accepted answers by country, `padded`.
    """

    def ask(row: int) -> Question:
        country = bridge.countries[row]
        assert country is not None
        answer = ending.answers[country.code]
        start = (bridge.titles[row],) if bridge.hops else ()
        return Question(
            text=ending.text.format(bridge.phrases[row]),
            accepted=answer.accepted,
            titles=(*start, country.title, *answer.titles),
        )

    frame = padded(ending.text.format(""))
    open_to = {code for code, answers in told.items() if not any(a in frame for a in answers)}
    rows = [
        row
        for row, country in enumerate(bridge.countries)
        if country is not None
        and country.code in open_to
        and bridge.titles[row] not in ending.answers[country.code].titles
        and not any(answer in asked[row] for answer in told[country.code])
    ]
    return Template(
        kind=f"{bridge.kind}.{ending.key}",
        hops=bridge.hops + ending.hops,
        group=bridge.group,
        rows=rows,
        ask=ask,
    )


def _bridges(table: FactTable) -> Iterator[_Bridge]:
    def of(row: City | Airport) -> Country:
        return table.country_of_code[row.country]

    countries = table.countries
    yield _bridge("country", countries, lambda row: row.title, lambda row: row)
    yield _bridge(
        "by_capital",
        countries,
        lambda row: f"the country or territory whose capital is {row.capital}",
        lambda row: row if table.is_only_capital(row) else None,
        known=frozenset({"capital", "capital.population", "capital.time_zone"}),
    )
    yield _bridge(
        "by_currency",
        countries,
        lambda row: f"the only country that uses the {row.currency} ({row.currency_code})",
        lambda row: row if table.is_only_user_of_currency(row) else None,
        known=frozenset({"currency", "currency_code"}),
    )
    yield _bridge(
        "city.country",
        table.cities,
        lambda city: f"the country where the city of {city.name} is",
        of,
    )
    yield _bridge(
        "airport.country",
        table.airports,
        lambda airport: f"the country of the airport with IATA code {airport.iata}",
        of,
    )
    yield _bridge(
        "element.country",
        table.elements,
        lambda element: f"the country where the element {element.word} was discovered",
        lambda element: table.country_of_name.get(element.place),
    )


def _bridge(
    kind: str,
    rows: Sequence[_Row],
    phrase: Callable[[_Row], str],
    country: Callable[[_Row], Country | None],
    known: frozenset[str] = frozenset(),
) -> _Bridge:
    group, _, is_further = kind.partition(".")
    return _Bridge(
        kind=kind,
        group=group if is_further else "country",
        hops=int(bool(is_further)),
        titles=[row.title for row in rows],
        phrases=[phrase(row) for row in rows],
        countries=[country(row) for row in rows],
        known=known,
    )
