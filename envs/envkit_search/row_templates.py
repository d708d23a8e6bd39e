"""Kinds of questions over the fact table, and those about one row or a row it refers to."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from envkit_search import spellings
from envkit_search.facts import Airport, City, Country, Element, FactTable, State
from envkit_search.spellings import Spellings

MAX_HOPS: Final = 3


class Question(NamedTuple):
    """A question with its unique answer."""

    text: str
    accepted: Spellings
    titles: tuple[str, ...]  # pages to read in order; the last one says the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One kind of question."""

    kind: str
    hops: int
    group: str
    """Table group that the question starts from."""
    rows: list[int]
    """Rows of the group that have the fact."""
    ask: Callable[[int], Question]
    """Returns the question for a row."""


_Row = TypeVar("_Row", Country, City, Airport, Element, State)
_Find = Callable[[_Row], Spellings | None]
"""Returns the answer; None if the row lacks the fact."""


def row_templates(table: FactTable) -> list[Template]:
    """Return the templates of all groups."""
    return [
        *_country_templates(table),
        *_city_templates(table),
        *_airport_templates(table),
        *_element_templates(table),
        *_state_templates(table),
    ]


def _about(
    group: str,
    rows: Sequence[_Row],
    asked: Mapping[str, tuple[str, _Find[_Row]]],
    further: Callable[[_Row], tuple[str, ...]] | None = None,
) -> Iterator[Template]:
    """Yield the templates of facts on the row's page, or on that of one further page.

    A question that contains its answer, word for word, is dropped.

    Args:
        group: Name of the group.
        rows: Its rows.
        asked: Name of the fact -> the question, with {0} for the row, and how to find the answer.
        further: Title of the page to read after the row's; None if the row's page has the answer.
    """
    for fact, (text, find) in asked.items():
        yield _template(f"{group}.{fact}", rows, text, find, further)


def _template(
    kind: str,
    rows: Sequence[_Row],
    text: str,
    find: _Find[_Row],
    further: Callable[[_Row], tuple[str, ...]] | None,
) -> Template:
    def ask(number: int) -> Question:
        row = rows[number]
        return Question(
            text=text.format(row),
            accepted=find(row) or (),
            titles=(row.title, *(further(row) if further else ())),
        )

    valid = [
        number
        for number, row in enumerate(rows)
        if (answer := find(row)) and not spellings.gives_away(text.format(row), answer)
    ]
    hops = 1 if further is None else 2
    return Template(kind=kind, hops=hops, group=kind.partition(".")[0], rows=valid, ask=ask)


def _country_templates(table: FactTable) -> Iterator[Template]:
    domains = Counter(country.domain for country in table.countries)
    yield from _about(
        "country",
        table.countries,
        {
            "of_domain": (
                "Which country or territory has the internet top-level domain {0.domain}?",
                lambda row: (
                    spellings.country_spellings(row.name) if domains[row.domain] == 1 else None
                ),
            )
        },
    )


def _city_templates(table: FactTable) -> Iterator[Template]:
    def state(city: City) -> State | None:
        return table.state_of_name.get(city.state)

    own: dict[str, tuple[str, _Find[City]]] = {
        "country": (
            "In which country is the city of {0.name}?",
            lambda city: spellings.country_spellings(table.country_of_code[city.country].name),
        ),
        "population": (
            "What is the population of the city of {0.name}?",
            lambda city: spellings.number_spellings(city.population),
        ),
        "time_zone": (
            "In which time zone is the city of {0.name}?",
            lambda city: spellings.text_spellings(city.time_zone),
        ),
        "state": (
            "In which state of the United States is the city of {0.name}?",
            lambda city: spellings.text_spellings(city.state) if city.state else None,
        ),
    }
    of_state: dict[str, tuple[str, _Find[City]]] = {
        "state.capital": (
            "What is the capital of the U.S. state where the city of {0.name} is?",
            lambda city: (
                spellings.text_spellings(found.capital) if (found := state(city)) else None
            ),
        ),
        "state.year": (
            "In which year was the U.S. state where the city of {0.name} is admitted to the Union?",
            lambda city: (str(found.year),) if (found := state(city)) else None,
        ),
    }
    yield from _about("city", table.cities, own)
    yield from _about(
        "city", table.cities, of_state, lambda city: (table.state_of_name[city.state].title,)
    )


def _airport_templates(table: FactTable) -> Iterator[Template]:
    served = {airport.iata: table.city(airport.city, airport.country) for airport in table.airports}

    def city_page(airport: Airport) -> tuple[str, ...]:
        city = served[airport.iata]
        return (city.title,) if city else ()

    own: dict[str, tuple[str, _Find[Airport]]] = {
        "iata": ("What is the IATA code of {0.title}?", lambda airport: (airport.iata,)),
        "city": (
            "Which city does the airport with IATA code {0.iata} serve?",
            lambda airport: spellings.text_spellings(airport.city),
        ),
        "country": (
            "In which country is the airport with IATA code {0.iata}?",
            lambda airport: spellings.country_spellings(
                table.country_of_code[airport.country].name
            ),
        ),
        "elevation": (
            "What is the elevation in feet of the airport with IATA code {0.iata}?",
            lambda airport: spellings.number_spellings(airport.elevation),
        ),
        "time_zone": (
            "In which time zone is the airport with IATA code {0.iata}?",
            lambda airport: spellings.text_spellings(airport.time_zone),
        ),
    }
    of_city: dict[str, tuple[str, _Find[Airport]]] = {
        "city.population": (
            "What is the population of the city that the airport with IATA code {0.iata} serves?",
            lambda airport: (
                spellings.number_spellings(city.population)
                if (city := served[airport.iata])
                else None
            ),
        )
    }
    yield from _about("airport", table.airports, own)
    yield from _about("airport", table.airports, of_city, city_page)


def _element_templates(table: FactTable) -> Iterator[Template]:
    own: dict[str, tuple[str, _Find[Element]]] = {
        "symbol": (
            "What is the chemical symbol of {0.word}?",
            lambda element: (element.symbol,),
        ),
        "number": (
            "What is the atomic number of {0.word}?",
            lambda element: (str(element.number),),
        ),
        "period": (
            "In which period of the periodic table is {0.word}?",
            lambda element: (str(element.period),),
        ),
        "year": (
            "In which year was the element {0.word} discovered?",
            lambda element: (str(element.year),) if element.year else None,
        ),
        "country": (
            "In which country was the element {0.word} discovered?",
            lambda row: (
                spellings.country_spellings(row.place)
                if row.place in table.country_of_name
                else None
            ),
        ),
        "of_symbol": (
            "Which chemical element has the symbol {0.symbol}?",
            lambda element: spellings.element_spellings(element.name),
        ),
        "of_number": (
            "Which chemical element has the atomic number {0.number}?",
            lambda element: spellings.element_spellings(element.name),
        ),
    }
    yield from _about("element", table.elements, own)


def _state_templates(table: FactTable) -> Iterator[Template]:
    def capital(state: State) -> City | None:
        return table.city(state.capital, "US", state.name)

    def capital_page(state: State) -> tuple[str, ...]:
        city = capital(state)
        return (city.title,) if city else ()

    own: dict[str, tuple[str, _Find[State]]] = {
        "capital": (
            "What is the capital of the U.S. state of {0.name}?",
            lambda state: spellings.text_spellings(state.capital),
        ),
        "year": (
            "In which year was the U.S. state of {0.name} admitted to the Union?",
            lambda state: (str(state.year),),
        ),
        "abbreviation": (
            "What is the two-letter abbreviation of the U.S. state of {0.name}?",
            lambda state: (state.abbreviation,),
        ),
        "of_capital": (
            "Of which U.S. state is {0.capital} the capital?",
            lambda state: (state.name,),
        ),
    }
    of_capital: dict[str, tuple[str, _Find[State]]] = {
        "capital.population": (
            "What is the population of the capital city of the U.S. state of {0.name}?",
            lambda state: (
                spellings.number_spellings(city.population) if (city := capital(state)) else None
            ),
        )
    }
    yield from _about("state", table.states, own)
    yield from _about("state", table.states, of_capital, capital_page)
