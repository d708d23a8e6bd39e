"""The pages of a fictional world: one per thing, and the misleading ones."""

import functools
import random
from collections.abc import Iterator
from typing import Final

from envkit.seeds import derive_seed
from envkit_search.bm25 import Bm25Index
from envkit_search.document import Document
from envkit_search.world import Thing, World, WorldShape
from envkit_search.world_schema import KINDS

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
