"""Generated tasks: an endless source whose rows are functions of (seed, index)."""

import random
from collections.abc import Sequence
from typing import Any

from envkit import ranges
from envkit.errors import ConfigurationError, DatasetError
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import Task
from envkit_linux_desktop.tasks import FAMILIES
from envkit_linux_desktop.tasks.scenario import LEVELS, VERSION, Scenario


class LinuxDesktopTasks:
    """Tasks of all families, or of some."""

    size: int | None = None
    """None: the source is endless."""

    def __init__(
        self,
        *,
        level: int | None = None,
        families: Sequence[str] | None = None,
        apps: Sequence[str] | None = None,
        split: str = "train",
        seed: int = 0,
    ) -> None:
        """Choose the tasks to draw from.

        Args:
            level: 1 to 4; None mixes all.
            families: Names from `FAMILIES`; None means all.
            apps: Only families of these applications; None means all.
            split: "train" or "test", which are drawn from different seeds.
            seed: Determines the sequence.

        Raises:
            ConfigurationError: A value is out of range, or no family is left.
            UnknownNameError: A family or an application does not exist.
        """
        ranges.one_of("split", split, ("train", "test"))
        ranges.one_of("level", level, (*LEVELS, None))
        known = {family.app for family in FAMILIES.values()}
        chosen = ranges.some_of("Linux desktop application", apps, known)
        self._families = [
            name
            for name in ranges.some_of("Linux desktop family", families, FAMILIES)
            if FAMILIES[name].app in chosen
        ]
        if not self._families:
            raise ConfigurationError("families and apps must leave at least one family, got none")
        self._levels = LEVELS if level is None else (level,)
        self._split, self._seed = split, checked_seed(seed)

    def task(self, index: int) -> Task:
        """Return the task at this index as JSON data."""
        rng = random.Random(derive_seed(VERSION, self._split, self._seed, index))
        family, level = rng.choice(self._families), rng.choice(self._levels)
        return {
            "id": f"{VERSION}/{self._split}/{self._seed}/{index}",
            "source": "generated",
            "split": self._split,
            "seed": self._seed,
            "index": index,
            "family": family,
            "level": level,
            "draw": rng.getrandbits(53),
        }


def scenario_of(task: Task) -> Scenario:
    """Return the scenario that a task names.

    Raises:
        DatasetError: The task does not name one.
    """
    family: Any = task.get("family")
    level: Any = task.get("level")
    draw: Any = task.get("draw")
    known = FAMILIES.get(family) if isinstance(family, str) else None
    if known is None or level not in LEVELS or not isinstance(draw, int):
        raise DatasetError(
            "a task must name a family of FAMILIES, a level from 1 to 4 and a whole number 'draw', "
            f"got {family!r:.80}, {level!r:.20} and {draw!r:.20}"
        )
    return known.scenario(level, draw)
