"""Questions over fictional worlds: an endless task source with one answer to each question.

A question starts at a thing and follows facts from page to page. Training and test worlds have
different seeds, so they share no thing.
"""

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Final, NamedTuple

from envkit.errors import ConfigurationError
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit_search.questions import checked_hops
from envkit_search.spellings import number_spellings
from envkit_search.world import WORLD, World, WorldShape
from envkit_search.world_pages import world_of
from envkit_search.world_schema import KINDS

MAX_HOPS: Final = 4
RULE: Final = "Where two pages disagree, the newer almanac is right."
"""Stated in every question of a world with contradictions, disputed or not."""
_VERSION: Final = "world-questions-1"


class _Step(NamedTuple):
    """A fact that is read on the page of a thing."""

    thing: int
    fact: int


class WorldQuestions:
    """The task source of fictional worlds."""

    def __init__(
        self,
        *,
        shape: WorldShape | None = None,
        worlds: int = 1,
        split: str = "train",
        hops: Collection[int] | None = None,
    ) -> None:
        """Choose the worlds and the questions.

        Args:
            shape: Size and difficulty; its seed seeds all worlds. None takes the defaults.
            worlds: How many different worlds the indices go through by turns. A process keeps a
                few of them in memory; another one is built again in a tenth of a second (2,000
                things).
            split: "train" or "test": different worlds.
            hops: How many pages of things to read, from 1 to 4; None takes all.

        Raises:
            ConfigurationError: A value is out of range.
        """
        if split not in ("train", "test"):
            raise ConfigurationError(f"split must be 'train' or 'test', got {split!r}")
        if worlds < 1:
            raise ConfigurationError(f"worlds must be at least 1, got {worlds}")
        self._shape = WorldShape() if shape is None else shape
        self._worlds = worlds
        self._split = split
        self._hops = checked_hops(hops, MAX_HOPS)

    @property
    def size(self) -> int | None:
        """None: the source is endless."""
        return None

    def task(self, index: int) -> Task:
        """Return the question of this index as JSON data.

        Raises:
            ConfigurationError: The index is negative.
        """
        if index < 0:
            raise ConfigurationError(f"task index must be at least 0, got {index}")
        shape = self._shape_of(index % self._worlds)
        world = world_of(shape)
        draws = random.Random(derive_seed(_VERSION, shape.seed, index))
        steps = _draw_steps(world, draws, draws.choice(self._hops))
        by_alias = draws.random() < 0.5
        return {
            "id": f"{WORLD}/{self._split}/{self._shape.seed}/{index}",
            "question": _wording(world, steps, by_alias=by_alias),
            "answers": list(_accepted(world, steps[-1])),
            "hops": len(steps),
            "kind": ".".join(
                [world.things[steps[0].thing].kind]
                + [KINDS[world.things[thing].kind].facts[fact].key for thing, fact in steps]
            ),
            "gold_titles": _titles(world, steps, by_alias=by_alias),
            "corpus": WORLD,
            "world": shape.to_json(),
            "split": self._split,
        }

    def _shape_of(self, number: int) -> WorldShape:
        seed = derive_seed(_VERSION, self._split, self._shape.seed, number)
        return replace(self._shape, seed=seed)


def _draw_steps(world: World, draws: random.Random, hops: int) -> list[_Step]:
    """Return a chain that visits no thing twice; its answer is a thing not visited, or a number."""
    while True:
        thing = draws.randrange(len(world.things))
        steps: list[_Step] = []
        visited: set[int] = set()
        while thing not in visited:
            visited.add(thing)
            facts = KINDS[world.things[thing].kind].facts
            is_last = len(steps) == hops - 1
            fact = draws.choice(
                [number for number, fact in enumerate(facts) if is_last or fact.target]
            )
            steps.append(_Step(thing, fact))
            value = world.things[thing].values[fact]
            if is_last:
                if facts[fact].target and value in visited:
                    break
                return steps
            thing = value


def _wording(world: World, steps: list[_Step], *, by_alias: bool) -> str:
    first = steps[0].thing
    phrase = KINDS[world.things[first].kind].mention.format(world.called(first, by_alias=by_alias))
    for thing, fact in steps[:-1]:
        phrase = KINDS[world.things[thing].kind].facts[fact].phrase.format(phrase)
    thing, fact = steps[-1]
    question = KINDS[world.things[thing].kind].facts[fact].question.format(phrase)
    return f"{question} {RULE}" if world.shape.contradictions else question


def _accepted(world: World, step: _Step) -> tuple[str, ...]:
    thing = world.things[step.thing]
    value = thing.values[step.fact]
    fact = KINDS[thing.kind].facts[step.fact]
    if not fact.target:
        return (str(value),) if fact.is_year else number_spellings(value)
    answer = world.things[value]
    return (answer.name, answer.alias) if answer.alias else (answer.name,)


def _titles(world: World, steps: list[_Step], *, by_alias: bool) -> list[str]:
    """Return the pages to read in order; each one is named on the page before it."""
    titles: list[str] = []
    for number, fact in steps:
        thing = world.things[number]
        if by_alias and thing.alias:
            titles.append(thing.alias)
        titles.append(thing.name)
        if thing.second_page_is_right(fact):
            titles.append(thing.second_title)
        by_alias = thing.says_alias[fact]
    return titles
