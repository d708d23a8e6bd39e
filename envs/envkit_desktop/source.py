"""Generated tasks: an endless source whose rows are functions of (seed, index)."""

import random
from collections.abc import Sequence
from typing import Final

from envkit import ranges
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import Task
from envkit_desktop.families import FAMILIES
from envkit_desktop.popups import Popup
from envkit_desktop.theme import THEMES

VERSION: Final = "computer-use-v0"
"""Part of every seed: a new version draws different tasks."""
LEVELS: Final = (1, 2, 3, 4, 5)
_POPUP_CHANCE: Final = {1: 0.0, 2: 0.1, 3: 0.3, 4: 0.5, 5: 0.8}
_POPUPS: Final = (
    ("Update", "A new version is ready.", ("Later", "Remind me")),
    ("Battery", "The battery is at 20%.", ("OK",)),
    ("Survey", "Do you like this desktop?", ("No, thanks", "Not now")),
    ("Backup", "The last backup was a week ago.", ("Dismiss",)),
    ("Network", "The connection is back.", ("Close",)),
)


class DesktopTasks:
    """Tasks of all families, or of some."""

    size: int | None = None
    """None: the source is endless."""

    def __init__(
        self,
        *,
        level: int | None = None,
        families: Sequence[str] | None = None,
        split: str = "train",
        seed: int = 0,
    ) -> None:
        """Choose the tasks to draw from.

        Args:
            level: 1 to 5; None mixes all.
            families: Names from `FAMILIES`; None means all.
            split: "train" or "test", which are drawn from different seeds.
            seed: Determines the sequence.

        Raises:
            ConfigurationError: A value is out of range.
            UnknownNameError: A family does not exist.
        """
        ranges.one_of("split", split, ("train", "test"))
        ranges.one_of("level", level, (*LEVELS, None))
        self._levels = LEVELS if level is None else (level,)
        self._families = ranges.some_of("desktop family", families, FAMILIES)
        self._split, self._seed = split, checked_seed(seed)

    def task(self, index: int) -> Task:
        """Return the task at this index as JSON data."""
        seed = derive_seed(VERSION, self._split, self._seed, index)
        rng = random.Random(seed)
        family, level = rng.choice(self._families), rng.choice(self._levels)
        data = FAMILIES[family].draw(rng, level)
        popups: list[Popup] = []
        while len(popups) < 2 and rng.random() < _POPUP_CHANCE[level]:
            title, text, buttons = rng.choice(_POPUPS)
            after = rng.randint(1, 4) + (popups[-1].after if popups else 0)
            popups.append(
                Popup(number=len(popups), after=after, title=title, text=text, buttons=buttons)
            )
        return {
            "id": f"{VERSION}/{self._split}/{self._seed}/{index}",
            "source": "generated",
            "split": self._split,
            "seed": self._seed,
            "index": index,
            "family": family,
            "level": level,
            "goal": data["goal"],
            "data": data,
            "popups": [popup.to_json() for popup in popups],
            "theme": rng.randrange(len(THEMES)) if level > 1 else 0,
            "look": rng.getrandbits(31),
        }
