"""A fictional world of things with facts, generated from a seed, with nothing to memorise.

Options set its difficulty: aliases (with a page that resolves them), misleading pages of namesakes,
and contradicting pages. Each page is from an almanac of some year; if two pages disagree on a fact,
the newer almanac is right, and both pages say so. There is one page per thing, and misleading ones.
"""

import functools
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from envkit import ranges
from envkit.errors import ConfigurationError
from envkit.seeds import checked_seed, derive_seed
from envkit_search.bm25 import Bm25Index
from envkit_search.document import Document
from envkit_search.names import NameMaker
from envkit_search.world_schema import KINDS

WORLD: Final = "world"
"""Name of the corpus in a task's `corpus`; its shape is in the task's `world`."""
MIN_SIZE: Final = 50
MAX_SIZE: Final = 200_000
_VERSION: Final = "world-1"
"""Part of every seed: a new version draws different worlds."""
_FIRST_ALMANAC: Final = 1900
_LAST_ALMANAC: Final = 1960


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldShape:
    """Parameters that define a world."""

    seed: int = 0
    size: int = 2000
    """Number of things; more pages are added for aliases, namesakes and contradictions."""
    aliases: float = 0.2
    """Share of things with a second name."""
    distractors: float = 0.2
    """Share of things with a namesake that has a page."""
    contradictions: float = 0.15
    """Share of things with a second page, from another almanac, that contradicts one fact."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigurationError: The seed, the size or a share is out of range.
        """
        object.__setattr__(self, "seed", checked_seed(self.seed))
        ranges.within(MIN_SIZE, MAX_SIZE, size=self.size)
        for name in ("aliases", "distractors", "contradictions"):
            ranges.within(0, 1, **{name: getattr(self, name)})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the shape that `to_json` wrote, as a task's `world` holds it.

        Raises:
            ConfigurationError: A field is unknown or out of range.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigurationError(f"no shape of a world: {dict(data)!r} ({error})") from error

    @property
    def label(self) -> str:
        """All fields in one word, for ids."""
        return "-".join(map(str, asdict(self).values()))

    def to_json(self) -> dict[str, Any]:
        """Return the shape as JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """A fact on which the two pages of a thing disagree."""

    fact: int
    """Number of the fact among those of the kind."""
    wrong: int
    """Value on the older page: a number, or the number of a thing."""
    almanac: int
    """Year of the second page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A town, river, person, company or book."""

    kind: str
    name: str
    """Also the title of its page."""
    alias: str
    """Its second name, the title of its own page; empty for none."""
    namesake: str
    """Title of a page about something else with a similar name; empty for none."""
    values: tuple[int, ...]
    """True values of the kind's facts: numbers, or the numbers of things."""
    says_alias: tuple[bool, ...]
    """By fact: whether its pages use the other thing's alias, if it has one."""
    almanac: int
    """Year of its page."""
    dispute: Dispute | None

    @property
    def second_title(self) -> str:
        """Title of the page that disagrees with the first."""
        assert self.dispute is not None
        return f"{self.name} (Almanac of {self.dispute.almanac})"

    def second_page_is_right(self, fact: int) -> bool:
        """Return whether only the second page has the true value of the fact."""
        dispute = self.dispute
        return dispute is not None and dispute.fact == fact and dispute.almanac > self.almanac


class World:
    """All things of a shape; the same on every machine."""

    def __init__(self, shape: WorldShape) -> None:
        self.shape = shape
        self.things = _draw_things(shape)

    def called(self, number: int, *, by_alias: bool) -> str:
        """Return the name of a thing, or its alias if wanted and available."""
        thing = self.things[number]
        return thing.alias if by_alias and thing.alias else thing.name


def _draw_things(shape: WorldShape) -> list[Thing]:
    draws = random.Random(derive_seed(_VERSION, shape.seed, shape.size))
    names = NameMaker(draws)
    kinds = [kind for kind, schema in KINDS.items() for _ in range(int(schema.share * shape.size))]
    kinds += ["person"] * (shape.size - len(kinds))
    members = {kind: [i for i, other in enumerate(kinds) if other == kind] for kind in KINDS}
    called = [names.make(kind) for kind in kinds]
    things: list[Thing] = []
    for number, kind in enumerate(kinds):
        # Every draw happens for any shares, so changing one keeps names and facts.
        values = tuple(_draw_value(draws, members, kind, fact, (number,)) for fact in _facts(kind))
        says_alias = tuple(draws.random() < 0.5 for _ in values)
        almanac = draws.randint(_FIRST_ALMANAC, _LAST_ALMANAC)
        dispute = _draw_dispute(draws, members, kind, number, values, almanac)
        alias = names.make(kind)
        namesake = f"{called[number]} {draws.choice(KINDS[kind].namesakes)}"
        has_alias, has_namesake, is_disputed = (draws.random() for _ in range(3))
        things.append(
            Thing(
                kind=kind,
                name=called[number],
                alias=alias if has_alias < shape.aliases else "",
                namesake=namesake
                if has_namesake < shape.distractors and names.claim(namesake)
                else "",
                values=values,
                says_alias=says_alias,
                almanac=almanac,
                dispute=dispute if is_disputed < shape.contradictions else None,
            )
        )
    return things


def _facts(kind: str) -> range:
    return range(len(KINDS[kind].facts))


def _draw_value(
    draws: random.Random,
    members: Mapping[str, list[int]],
    kind: str,
    fact: int,
    excluded: tuple[int, ...],
) -> int:
    """Return a value that is not excluded."""
    schema = KINDS[kind].facts[fact]
    while True:
        if schema.target:
            value = draws.choice(members[schema.target])
        else:
            value = draws.randint(schema.low, schema.high)
        if value not in excluded:
            return value


def _draw_dispute(
    draws: random.Random,
    members: Mapping[str, list[int]],
    kind: str,
    number: int,
    values: tuple[int, ...],
    almanac: int,
) -> Dispute:
    fact = draws.choice(_facts(kind))
    return Dispute(
        fact=fact,
        wrong=_draw_value(draws, members, kind, fact, (number, values[fact])),
        almanac=almanac + draws.choice((-1, 1)) * draws.randint(1, 30),
    )


RULE: Final = "Where the two pages disagree, the newer almanac is right."
"""Appears only on pages that may disagree, so no question hints at it."""
WORLDS_IN_MEMORY: Final = 4
"""Worlds and indices cached per process; the least recently used is dropped first."""


@functools.lru_cache(maxsize=WORLDS_IN_MEMORY)
def world_of(shape: WorldShape) -> World:
    """Return the cached world of a shape."""
    return World(shape)


@functools.lru_cache(maxsize=WORLDS_IN_MEMORY)
def world_index(shape: WorldShape) -> Bm25Index:
    """Return the cached index of a world's pages."""
    return Bm25Index.build(world_documents(world_of(shape)))


def world_documents(world: World) -> list[Document]:
    """Return all pages of a world."""
    return [
        Document(id=f"world-{number:07d}", title=title, text=text)
        for number, (title, text) in enumerate(_pages(world))
    ]


def value_text(world: World, thing: Thing, fact: int, value: int) -> str:
    """Return a value as the thing's pages write it."""
    if not KINDS[thing.kind].facts[fact].target:
        return str(value)
    return world.called(value, by_alias=thing.says_alias[fact])


def _pages(world: World) -> Iterator[tuple[str, str]]:
    draws = random.Random(derive_seed("namesakes", world.shape.seed, world.shape.size))
    for thing in world.things:
        yield thing.name, _first_page(world, thing)
        if thing.alias:
            yield thing.alias, f"{thing.alias} is another name of {thing.name}."
        if thing.dispute is not None:
            yield thing.second_title, _second_page(world, thing)
        if thing.namesake:
            yield thing.namesake, _namesake_page(thing, draws)


def _first_page(world: World, thing: Thing) -> str:
    dispute = thing.dispute
    values = list(thing.values)
    if dispute is not None and dispute.almanac > thing.almanac:
        values[dispute.fact] = dispute.wrong
    alias = f", also called {thing.alias}," if thing.alias else ""
    sentences = [
        f"From the Almanac of {thing.almanac}.",
        f"{thing.name}{alias} {KINDS[thing.kind].introduction}.",
        *(_sentence(world, thing, fact, value) for fact, value in enumerate(values)),
    ]
    if dispute is not None:
        sentences.append(f"See also: {thing.second_title}. {RULE}")
    return " ".join(sentences)


def _second_page(world: World, thing: Thing) -> str:
    dispute = thing.dispute
    assert dispute is not None
    is_newer = dispute.almanac > thing.almanac
    value = thing.values[dispute.fact] if is_newer else dispute.wrong
    return (
        f"From the Almanac of {dispute.almanac}. {_sentence(world, thing, dispute.fact, value)} "
        f"See also: {thing.name}. {RULE}"
    )


def _namesake_page(thing: Thing, draws: random.Random) -> str:
    """Return a page with similar words that says nothing about the thing."""
    return (
        f"From the Almanac of {draws.randint(1900, 1960)}. {thing.namesake} bears the name of "
        f"{thing.name} and is otherwise no part of it. It was opened in "
        f"{draws.randint(1850, 1899)} and has {draws.randint(20, 900)} members."
    )


def _sentence(world: World, thing: Thing, fact: int, value: int) -> str:
    written = value_text(world, thing, fact, value)
    return KINDS[thing.kind].facts[fact].sentence.format(thing.name, written)
