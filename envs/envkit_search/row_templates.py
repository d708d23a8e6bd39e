"""Questions about the facts of one row, or of a row it refers to."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from envkit_search.facts import Airport, City, Country, Element, FactTable, State
from envkit_search.spellings import (
    Spellings,
    country_spellings,
    element_spellings,
    gives_away,
    number_spellings,
    text_spellings,
)
from envkit_search.template import Question, Template

_Row = TypeVar("_Row", Country, City, Airport, Element, State)


def row_templates(table: FactTable) -> list[Template]:
    """Return the templates of all groups."""
    return [
        *_country_templates(table),
        *_city_templates(table),
        *_airport_templates(table),
        *_element_templates(table),
        *_state_templates(table),
    ]


def _own(
    kind: str,
    rows: Sequence[_Row],
    text: Callable[[_Row], str],
    find: Callable[[_Row], Spellings | None],
    further: Callable[[_Row], tuple[str, ...]] | None = None,
) -> Template:
    """Return the template of a fact on the row's page, or on that of one further page.

    A question that contains its answer, word for word, is dropped.

    Args:
        kind: Name of the kind, prefixed with the group.
        rows: Rows of the group.
        text: Returns the question's text.
        find: Returns the answer; None if the row lacks the fact.
        further: Title of the page to read after the row's; None if the row's page has the answer.
    """

    def ask(number: int) -> Question:
        row = rows[number]
        return Question(
            text=text(row),
            accepted=find(row) or (),
            titles=(row.title, *(further(row) if further else ())),
        )

    valid = [
        number
        for number, row in enumerate(rows)
        if (answer := find(row)) and not gives_away(text(row), answer)
    ]
    hops = 1 if further is None else 2
    return Template(kind=kind, hops=hops, group=kind.partition(".")[0], rows=valid, ask=ask)


def _country_templates(table: FactTable) -> Iterator[Template]:
    domains = Counter(country.domain for country in table.countries)
    yield _own(
        "country.of_domain",
        table.countries,
        lambda country: (
            f"Which country or territory has the internet top-level domain {country.domain}?"
        ),
        lambda country: country_spellings(country.name) if domains[country.domain] == 1 else None,
    )


def _city_templates(table: FactTable) -> Iterator[Template]:
    cities = table.cities

    def state(city: City) -> State | None:
        return table.state_of_name.get(city.state)

    def state_page(city: City) -> tuple[str, ...]:
        return (table.state_of_name[city.state].title,)

    yield _own(
        "city.country",
        cities,
        lambda city: f"In which country is the city of {city.name}?",
        lambda city: country_spellings(table.country_of_code[city.country].name),
    )
    yield _own(
        "city.population",
        cities,
        lambda city: f"What is the population of the city of {city.name}?",
        lambda city: number_spellings(city.population),
    )
    yield _own(
        "city.time_zone",
        cities,
        lambda city: f"In which time zone is the city of {city.name}?",
        lambda city: text_spellings(city.time_zone),
    )
    yield _own(
        "city.state",
        cities,
        lambda city: f"In which state of the United States is the city of {city.name}?",
        lambda city: text_spellings(city.state) if city.state else None,
    )
    yield _own(
        "city.state.capital",
        cities,
        lambda city: f"What is the capital of the U.S. state where the city of {city.name} is?",
        lambda city: text_spellings(found.capital) if (found := state(city)) else None,
        state_page,
    )
    yield _own(
        "city.state.year",
        cities,
        lambda city: (
            f"In which year was the U.S. state where the city of {city.name} is admitted to the "
            "Union?"
        ),
        lambda city: (str(found.year),) if (found := state(city)) else None,
        state_page,
    )


def _airport_templates(table: FactTable) -> Iterator[Template]:
    airports = table.airports
    served = {airport.iata: table.city(airport.city, airport.country) for airport in airports}

    def city_page(airport: Airport) -> tuple[str, ...]:
        city = served[airport.iata]
        return (city.title,) if city else ()

    yield _own(
        "airport.iata",
        airports,
        lambda airport: f"What is the IATA code of {airport.title}?",
        lambda airport: (airport.iata,),
    )
    yield _own(
        "airport.city",
        airports,
        lambda airport: f"Which city does the airport with IATA code {airport.iata} serve?",
        lambda airport: text_spellings(airport.city),
    )
    yield _own(
        "airport.country",
        airports,
        lambda airport: f"In which country is the airport with IATA code {airport.iata}?",
        lambda airport: country_spellings(table.country_of_code[airport.country].name),
    )
    yield _own(
        "airport.elevation",
        airports,
        lambda airport: (
            f"What is the elevation in feet of the airport with IATA code {airport.iata}?"
        ),
        lambda airport: number_spellings(airport.elevation),
    )
    yield _own(
        "airport.time_zone",
        airports,
        lambda airport: f"In which time zone is the airport with IATA code {airport.iata}?",
        lambda airport: text_spellings(airport.time_zone),
    )
    yield _own(
        "airport.city.population",
        airports,
        lambda airport: (
            "What is the population of the city that the airport with IATA code "
            f"{airport.iata} serves?"
        ),
        lambda airport: (
            number_spellings(city.population) if (city := served[airport.iata]) else None
        ),
        city_page,
    )


def _element_templates(table: FactTable) -> Iterator[Template]:
    elements = table.elements
    yield _own(
        "element.symbol",
        elements,
        lambda element: f"What is the chemical symbol of {element.name.lower()}?",
        lambda element: (element.symbol,),
    )
    yield _own(
        "element.number",
        elements,
        lambda element: f"What is the atomic number of {element.name.lower()}?",
        lambda element: (str(element.number),),
    )
    yield _own(
        "element.period",
        elements,
        lambda element: f"In which period of the periodic table is {element.name.lower()}?",
        lambda element: (str(element.period),),
    )
    yield _own(
        "element.year",
        elements,
        lambda element: f"In which year was the element {element.name.lower()} discovered?",
        lambda element: (str(element.year),) if element.year else None,
    )
    yield _own(
        "element.country",
        elements,
        lambda element: f"In which country was the element {element.name.lower()} discovered?",
        lambda element: (
            country_spellings(element.place) if element.place in table.country_of_name else None
        ),
    )
    yield _own(
        "element.of_symbol",
        elements,
        lambda element: f"Which chemical element has the symbol {element.symbol}?",
        lambda element: element_spellings(element.name),
    )
    yield _own(
        "element.of_number",
        elements,
        lambda element: f"Which chemical element has the atomic number {element.number}?",
        lambda element: element_spellings(element.name),
    )


def _state_templates(table: FactTable) -> Iterator[Template]:
    states = table.states

    def capital(state: State) -> City | None:
        return table.city(state.capital, "US", state.name)

    def capital_page(state: State) -> tuple[str, ...]:
        city = capital(state)
        return (city.title,) if city else ()

    yield _own(
        "state.capital",
        states,
        lambda state: f"What is the capital of the U.S. state of {state.name}?",
        lambda state: text_spellings(state.capital),
    )
    yield _own(
        "state.year",
        states,
        lambda state: f"In which year was the U.S. state of {state.name} admitted to the Union?",
        lambda state: (str(state.year),),
    )
    yield _own(
        "state.abbreviation",
        states,
        lambda state: f"What is the two-letter abbreviation of the U.S. state of {state.name}?",
        lambda state: (state.abbreviation,),
    )
    yield _own(
        "state.of_capital",
        states,
        lambda state: f"Of which U.S. state is {state.capital} the capital?",
        lambda state: (state.name,),
    )
    yield _own(
        "state.capital.population",
        states,
        lambda state: (
            f"What is the population of the capital city of the U.S. state of {state.name}?"
        ),
        lambda state: number_spellings(city.population) if (city := capital(state)) else None,
        capital_page,
    )
