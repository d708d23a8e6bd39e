"""A reasoning-gym dataset as a task source, and its grader."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from envkit import ranges
from envkit.errors import ConfigurationError, DatasetError
from envkit.grading import Grade, UngradedError, finite_reward, settle
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import ENDLESS_INDEX_LIMIT, Task
from envkit_reasoning_gym.answer_guard import is_safe
from envkit_reasoning_gym.integrals import is_wrong_integral
from envkit_reasoning_gym.names import NOT_PLAYED, factory

_KEPT: Final = 4
"""Datasets of other seeds kept in memory, since creating one may take seconds."""
_EXAMPLES: Final = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
"""Metadata key of a right answer, in datasets with several per question."""
_INTEGRALS: Final = frozenset({"simple_integration", "intermediate_integration"})
_UNSOLVED: Final = frozenset({"boxnet", "rush_hour"})


class DatasetTasks:
    """The tasks of a dataset: `{"seed": 0, "index": 17}`.

    An item is a function of the dataset's settings, its seed and the index. A task needs only seed
    and index; settings belong to the environment.
    """

    def __init__(
        self, name: str, *, seed: int, size: int, level: int | None, config: Mapping[str, Any]
    ) -> None:
        """Create the dataset.

        Raises:
            ConfigurationError: reasoning-gym has no such dataset, level or setting.
            MissingDependencyError: reasoning-gym is not installed.
        """
        self._factory = factory()
        if name not in self._factory.DATASETS or name in NOT_PLAYED:
            raise ConfigurationError(
                f"reasoning-gym has no dataset {name!r} that can be played alone"
            )
        ranges.within(1, ENDLESS_INDEX_LIMIT, size=size)
        ranges.at_least(0, level=level)
        if config.keys() & {"seed", "size"}:
            raise ConfigurationError(
                f"pass seed and size as arguments instead of in config, got {dict(config)!r:.80}"
            )
        self.name, self._seed, self.size = name, checked_seed(seed), size
        self._config = {**self._level_settings(level), **config}
        self._made: dict[int, Any] = {}
        self._dataset(self._seed)

    def task(self, index: int) -> Task:
        """Return the task of this index."""
        ranges.within(0, self.size - 1, index=index)
        return {"seed": self._seed, "index": index}

    def entry(self, task: Task) -> dict[str, Any]:
        """Return reasoning-gym's own item.

        It has "question", "metadata" and "answer", which is None if several are right.

        Raises:
            DatasetError: The task has no such index.
        """
        seed, index = task.get("seed", self._seed), task.get("index")
        if not isinstance(seed, int) or not isinstance(index, int) or not 0 <= index < self.size:
            raise DatasetError(
                f"a task must have a seed and an index from 0 to {self.size - 1}, got {task!r:.80}"
            )
        return dict(self._dataset(seed)[index])

    def solver(self) -> Callable[[Task], str]:
        """Return a function that gives a right answer to a task; some datasets have several.

        Raises:
            ConfigurationError: reasoning-gym has no answers for this dataset.
        """
        if self.name in _UNSOLVED:
            raise ConfigurationError(f"reasoning-gym has no answers for {self.name!r}")
        return lambda task: str(self.stated_answer(task))

    def stated_answer(self, task: Task) -> str | None:
        """Return a right answer to a task; None if reasoning-gym has none."""
        if self.name in _UNSOLVED:
            return None
        return _right_answer(self.name, self.entry(task))

    def score(self, answer: str, entry: Mapping[str, Any]) -> Grade:
        """Return reasoning-gym's own score of an answer, 0 to 1.

        An answer that the grader cannot read is wrong, unless it cannot read the right one either.
        An answer that it would execute as a program is also wrong; see `answer_guard`.

        Raises:
            EnvFault: The grader fails on its own answer; kind GRADER.
        """
        if answer != entry["answer"] and not is_safe(self.name, answer):
            return Grade(score=0.0)
        dataset = self._dataset(self._seed)
        if self.name in _INTEGRALS:
            facts = entry["metadata"]
            if is_wrong_integral(answer, facts["integrand"], facts["variable"]):
                return Grade(score=0.0)

        def grade(text: str) -> float:
            try:
                return finite_reward(dataset.score_answer(text, dict(entry)))
            except Exception as error:  # whatever a foreign grader raises
                raise UngradedError(
                    f"reasoning-gym's grader of {self.name!r} failed: {error!r}"
                ) from error

        return settle(
            lambda: grade(answer),
            untouched=lambda: grade(_right_answer(self.name, entry)),
            grader=f"reasoning-gym {self.name}",
            task=entry,
        )

    def _level_settings(self, level: int | None) -> dict[str, Any]:
        if level is None:
            return {}
        if not self._factory.has_curriculum(self.name):
            raise ConfigurationError(f"reasoning-gym has no levels for {self.name!r}; leave it out")
        curriculum: Any = self._factory.create_curriculum(self.name)
        curriculum.set_global_level(level)
        return dict(cast("dict[str, Any]", vars(curriculum.generate_configuration())))

    def _dataset(self, seed: int) -> Any:  # noqa: ANN401  # a ProceduralDataset
        if seed not in self._made:
            if len(self._made) >= _KEPT:
                del self._made[next(iter(self._made))]
            state = random.getstate()
            try:
                settings = {**self._config, "seed": _spread(seed), "size": self.size}
                self._made[seed] = self._factory.create_dataset(self.name, **settings)
            except (TypeError, ValueError, AssertionError) as error:
                raise ConfigurationError(
                    f"reasoning-gym refuses the settings {dict(self._config)!r:.200} of "
                    f"{self.name!r}: {error}"
                ) from error
            finally:
                random.setstate(state)
        return self._made[seed]


def _right_answer(name: str, entry: Mapping[str, Any]) -> str:
    """Return a right answer to an item, or no text if reasoning-gym has none."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    example: object = entry["metadata"].get(_EXAMPLES.get(name, ""), "")
    return example if isinstance(example, str) else json.dumps(example)


def _spread(seed: int) -> int:
    """Spread seeds so neighbouring seeds share no items.

    reasoning-gym draws an item from seed + index, so its seeds 0 and 1 would share all items but
    one.
    """
    return derive_seed("reasoning_gym", seed) % 2**31
