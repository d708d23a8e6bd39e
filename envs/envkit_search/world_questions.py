"""Questions over a fictional world: an endless task source with one answer per question.

A question starts at a thing and follows facts from page to page. Training and test questions start
at different things; worlds of different seeds share nothing.
"""

import random
from collections.abc import Collection
from typing import Final, NamedTuple

from envkit import ranges
from envkit.errors import ConfigurationError
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit_search.corpora import SPLITS, TEST_BELOW, checked_hops, title_hash
from envkit_search.spellings import number_spellings
from envkit_search.world import WORLD, World, WorldShape, world_of
from envkit_search.world_schema import KINDS

MAX_HOPS: Final = 4
_VERSION: Final = "world-questions-1"
_MAX_ATTEMPTS: Final = 20_000


class _Step(NamedTuple):
    """A fact that is read on the page of a thing."""

    thing: int
    fact: int


class WorldQuestions:
    """The task source of a fictional world."""

    size: int | None = None
    """None: the source is endless."""

    def __init__(
        self,
        *,
        shape: WorldShape | None = None,
        split: str = "train",
        hops: Collection[int] | None = None,
    ) -> None:
        """Choose the world and the questions.

        Args:
            shape: Seed, size and difficulty of the world; None uses the defaults.
            split: "train", "test" (an eighth of the things) or "all"; the first two share no
                starting page.
            hops: Numbers of pages to read, from 1 to 4; None means all.

        Raises:
            ConfigurationError: The split or a number of hops does not exist.
        """
        self._shape = WorldShape() if shape is None else shape
        self._split = ranges.one_of("split", split, SPLITS)
        self._hops = checked_hops(hops, MAX_HOPS)

    def task(self, index: int) -> Task:
        """Return the question at this index as JSON data; the first call builds the world.

        Raises:
            ConfigurationError: The index is negative, or the world is too small for a question.
        """
        ranges.at_least(0, index=index)
        world = world_of(self._shape)
        draws = random.Random(derive_seed(_VERSION, self._shape.seed, self._split, index))
        steps = _draw_steps(world, draws, draws.choice(self._hops), self._split)
        by_alias = draws.random() < 0.5
        start = world.things[steps[0].thing]
        return {
            "id": f"{WORLD}/{self._shape.label}/{self._split}/{index}",
            "question": _wording(world, steps, by_alias=by_alias),
            "answers": list(_accepted(world, steps[-1])),
            "hops": len(steps),
            "kind": ".".join(
                [start.kind]
                + [KINDS[world.things[thing].kind].facts[fact].key for thing, fact in steps]
            ),
            "gold_titles": _titles(world, steps, by_alias=by_alias),
            "corpus": WORLD,
            "world": self._shape.to_json(),
            "split": _split_of(start.name),
        }


def _split_of(name: str) -> str:
    return "test" if title_hash(_VERSION, name) < TEST_BELOW else "train"


def _draw_steps(world: World, draws: random.Random, hops: int, split: str) -> list[_Step]:
    """Return a chain that visits no thing twice; its answer is a thing not visited, or a number.

    Raises:
        ConfigurationError: The world seems to have no such chain.
    """
    for _ in range(_MAX_ATTEMPTS):
        thing = draws.randrange(len(world.things))
        if split not in ("all", _split_of(world.things[thing].name)):
            continue
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
    raise ConfigurationError(
        f"a world of {world.shape.size} things has no question of {hops} hops in the split "
        f"{split!r}; make it larger"
    )


def _wording(world: World, steps: list[_Step], *, by_alias: bool) -> str:
    first = steps[0].thing
    phrase = KINDS[world.things[first].kind].mention.format(world.called(first, by_alias=by_alias))
    for thing, fact in steps[:-1]:
        phrase = KINDS[world.things[thing].kind].facts[fact].phrase.format(phrase)
    thing, fact = steps[-1]
    return KINDS[world.things[thing].kind].facts[fact].question.format(phrase)


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
