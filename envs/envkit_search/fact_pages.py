"""The pages of the fact corpus: one document per row of the table."""

import functools
from collections.abc import Iterator
from typing import Final

from envkit_search.bm25 import Bm25Index
from envkit_search.document import Document
from envkit_search.facts import Airport, City, Country, Element, FactTable, State, fact_table

FACTS: Final = "facts"
"""Name of the corpus in a task's `corpus`."""


@functools.cache
def fact_documents() -> tuple[Document, ...]:
    """Return all pages, about 13,400; built once per process."""
    table = fact_table()
    return tuple(
        Document(id=f"facts-{number:05d}", title=title, text=" ".join(filter(None, sentences)))
        for number, (title, sentences) in enumerate(_pages(table))
    )


@functools.cache
def fact_index() -> Bm25Index:
    """Return the index of all pages, built once per process."""
    return Bm25Index.build(fact_documents())


def _pages(table: FactTable) -> Iterator[tuple[str, tuple[str, ...]]]:
    for country in table.countries:
        yield country.title, _country(country, table)
    for city in table.cities:
        yield city.title, _city(city, table.country_of_code[city.country])
    for airport in table.airports:
        yield airport.title, _airport(airport, table.country_of_code[airport.country])
    for element in table.elements:
        yield element.title, _element(element)
    for state in table.states:
        yield state.title, _state(state)


def _country(country: Country, table: FactTable) -> tuple[str, ...]:
    borders = ", ".join(neighbour.name for neighbour in table.neighbours(country))
    dialling, domain = country.dialling_code, country.domain
    return (
        f"{country.name} is a country or territory in {country.continent}.",
        f"Its capital is {country.capital}.",
        f"It has an area of {country.area:,} square kilometres and a population of "
        f"{country.population:,}.",
        f"Its currency is the {country.currency} ({country.currency_code}).",
        f"Its international dialling code is +{dialling}." if dialling else "",
        f"Its internet top-level domain is {domain}." if domain else "",
        f"It shares land borders with {borders}." if borders else "It has no land borders.",
    )


def _city(city: City, country: Country) -> tuple[str, ...]:
    state = f"{city.state}, " if city.state else ""
    return (
        f"{city.name} is a city in {state}{country.name} with a population of {city.population:,}.",
        f"It lies at latitude {city.latitude:.2f} and longitude {city.longitude:.2f}.",
        f"Its time zone is {city.time_zone}.",
    )


def _airport(airport: Airport, country: Country) -> tuple[str, ...]:
    icao = f", ICAO code {airport.icao}" if airport.icao else ""
    return (
        f"{airport.name} (IATA code {airport.iata}{icao}) is an airport serving {airport.city}, "
        f"{country.name}.",
        f"Its elevation is {airport.elevation:,} feet.",
        f"Its time zone is {airport.time_zone}.",
    )


def _element(element: Element) -> tuple[str, ...]:
    group = f" and group {element.group}" if element.group else ""
    year = f" in {element.year}" if element.year else ""
    place = f" in {element.place}" if element.place else ""
    discovery = f"It was discovered by {element.discoverers}{year}{place}."
    return (
        f"{element.name} is a chemical element with symbol {element.symbol} and atomic number "
        f"{element.number}.",
        f"It is in period {element.period}{group} of the periodic table.",
        discovery if element.year else "It has been known since ancient times.",
    )


def _state(state: State) -> tuple[str, ...]:
    return (
        f"{state.name} is a state of the United States, abbreviated {state.abbreviation}.",
        f"Its capital is {state.capital}.",
        f"It was admitted to the Union in {state.year}.",
    )
