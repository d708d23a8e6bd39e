"""The bundled table of real facts, and the relations between its rows.

`scripts/search/build_facts.py` bakes the table; `data/NOTICE` names its sources and licences
(countries and cities: GeoNames, CC BY 4.0). A row's fields are in the order of the file. An empty
string or zero means that the source lacks the fact.
"""

import functools
import json
import zlib
from collections import Counter
from importlib import resources
from typing import Any, NamedTuple

from envkit_search.words import title_key


class Country(NamedTuple):
    """A country or territory."""

    code: str  # ISO 3166-1 alpha-2
    title: str  # also its name
    capital: str
    continent: str
    area: int  # square kilometres
    population: int
    currency: str
    currency_code: str  # ISO 4217
    dialling_code: str  # without the plus
    domain: str  # with the dot
    neighbours: list[str]  # codes of countries with a common land border

    @property
    def name(self) -> str:
        """Name used in sentences."""
        return self.title


class City(NamedTuple):
    """A city of at least 100,000 inhabitants, with a unique name."""

    title: str
    name: str
    country: str  # code
    state: str  # name of the state of the United States; empty elsewhere
    population: int
    latitude: float
    longitude: float
    time_zone: str


class Airport(NamedTuple):
    """An airport with an IATA code."""

    title: str
    name: str
    iata: str
    icao: str
    city: str
    country: str  # code
    elevation: int  # feet
    time_zone: str


class Element(NamedTuple):
    """A chemical element."""

    title: str
    name: str
    symbol: str
    number: int
    period: int
    group: int
    discoverers: str
    year: int
    place: str  # where it was discovered, mostly a country

    @property
    def word(self) -> str:
        """Its name inside a sentence."""
        return self.name.lower()


class State(NamedTuple):
    """A state of the United States."""

    title: str
    name: str
    abbreviation: str
    capital: str
    year: int  # of admission to the Union


class FactTable:
    """All rows, and lookups between them."""

    def __init__(self, table: dict[str, list[Any]]) -> None:
        self.countries = [Country(*row) for row in table["countries"]]
        self.cities = [City(*row) for row in table["cities"]]
        self.airports = [Airport(*row) for row in table["airports"]]
        self.elements = [Element(*row) for row in table["elements"]]
        self.states = [State(*row) for row in table["states"]]
        self.country_of_code = {country.code: country for country in self.countries}
        self.country_of_name = {country.name: country for country in self.countries}
        self.state_of_name = {state.name: state for state in self.states}
        self._city_of_key = {title_key(city.name): city for city in self.cities}
        self._capitals = Counter(title_key(country.capital) for country in self.countries)
        self._currencies = Counter(country.currency_code for country in self.countries)

    def group_titles(self) -> dict[str, list[str]]:
        """Return the titles of all rows, by group."""
        return {
            "country": [country.title for country in self.countries],
            "city": [city.title for city in self.cities],
            "airport": [airport.title for airport in self.airports],
            "element": [element.title for element in self.elements],
            "state": [state.title for state in self.states],
        }

    def city(self, name: str, country: str, state: str = "") -> City | None:
        """Return the city with this name in this country and state; None if it has no page.

        Args:
            name: In any case, with or without accents.
            country: Its code.
            state: Name of the state; empty for any.
        """
        city = self._city_of_key.get(title_key(name))
        if city is None or city.country != country or (state and city.state != state):
            return None
        return city

    def capital_city(self, country: Country) -> City | None:
        """Return the page of the country's capital; None if it has none."""
        return self.city(country.capital, country.code)

    def neighbours(self, country: Country) -> list[Country]:
        """Return the countries with a common land border."""
        return [self.country_of_code[code] for code in country.neighbours]

    def is_only_capital(self, country: Country) -> bool:
        """Return whether no other country's capital has the same name."""
        return self._capitals[title_key(country.capital)] == 1

    def is_only_user_of_currency(self, country: Country) -> bool:
        """Return whether no other country has the same currency."""
        return self._currencies[country.currency_code] == 1


@functools.cache
def fact_table() -> FactTable:
    """Return the bundled table, read once per process."""
    content = resources.files("envkit_search").joinpath("data/facts.json.zlib").read_bytes()
    return FactTable(json.loads(zlib.decompress(content)))
