"""A source of tasks: every row names a page and a seed."""

import random
from collections.abc import Sequence
from typing import Final

from envkit import ranges
from envkit.errors import ConfigurationError, DatasetError
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import Task
from envkit_browser.miniwob.tasks import TASKS, Kind

VERSION: Final = "computer-use-miniwob-v0"
"""Part of every seed: a new version draws different tasks."""
_SEED_LIMIT: Final = 2**31


class MiniwobTasks:
    """An endless source of one task, several or all."""

    size: int | None = None
    """None: the source is endless."""

    def __init__(
        self,
        *,
        names: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        split: str = "train",
        seed: int = 0,
    ) -> None:
        """Choose the tasks to draw from.

        Args:
            names: Names of tasks; None means all.
            kinds: Values of `Kind`, to select only tasks of these; None means all.
            split: "train" or "test". The test split has other seeds and, in the few pages that have
                it, the page's own test data.
            seed: Determines the sequence.

        Raises:
            ConfigurationError: The split does not exist, or no task is left.
            UnknownNameError: There is no such task or kind.
        """
        ranges.one_of("split", split, ("train", "test"))
        wanted = ranges.some_of("kind of MiniWoB++ tasks", kinds, list(Kind))
        chosen = ranges.some_of("MiniWoB++ task", names, TASKS)
        self.names: Final = tuple(name for name in chosen if TASKS[name].kind in wanted)
        if not self.names:
            raise ConfigurationError("names and kinds must leave at least one task, got none")
        self._split, self._seed = split, checked_seed(seed)

    def task(self, index: int) -> Task:
        """Return the task of this index as JSON data."""
        rng = random.Random(derive_seed(VERSION, self._split, self._seed, index))
        name = rng.choice(self.names)
        return {
            "id": f"{VERSION}/{self._split}/{self._seed}/{index}",
            "source": "miniwob",
            "split": self._split,
            "index": index,
            "name": name,
            "kind": TASKS[name].kind.value,
            "seed": rng.randrange(_SEED_LIMIT),
        }


def check_task(task: Task) -> None:
    """Reject a row that names no page or no seed.

    Raises:
        DatasetError: The row names no page or no seed.
    """
    name, seed = task.get("name"), task.get("seed")
    if name not in TASKS or not isinstance(seed, int) or isinstance(seed, bool):
        raise DatasetError(
            "a MiniWoB++ task needs the 'name' of a task such as 'click-button' and a whole number "
            f"as 'seed', got {name!r:.80} and {seed!r:.80}"
        )
