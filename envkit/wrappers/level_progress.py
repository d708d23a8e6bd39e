"""The difficulty level of a curriculum, adjusted by success rate."""

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from envkit.errors import ConfigurationError, StorageError
from envkit.files import replace_file
from envkit.ranges import one_of

Level = int | float | str
"""A value of an environment's level argument, or of a task's level."""
_REMEMBERED: Final = 4096
"""Limit on remembered seeds with their levels and episodes with their results."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What decides success: rewards, and the success term of info."""

    reward: float
    """The environment's own reward, of a step or summed over an episode."""
    verdict: bool | None
    """The latest success term; None without one."""


@dataclass(slots=True)
class _Episode:
    """Results of an unfinished or recently finished episode."""

    steps: dict[int, StepResult] = field(default_factory=dict[int, StepResult])  # by turn
    is_counted: bool = False


class LevelProgress:
    """A level that moves up and down with the recent success rate.

    When the window is full, a rate of at least `up` moves one level up and a rate of at most `down`
    moves one level down. A move empties the window, and late results from another level are
    ignored. The level depends only on the sequence of results. All environments of a rollout share
    one instance across threads; copying it returns the same object.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        *,
        start: Level | None = None,
        window: int = 64,
        up: float = 0.75,
        down: float = 0.25,
    ) -> None:
        """Start at a level.

        Args:
            levels: From the easiest to the hardest.
            start: The first level; None uses the easiest.
            window: Number of results at a level that decide a move.
            up: Success rate at or above which the level goes up.
            down: Success rate at or below which the level goes down; a negative rate disables this.

        Raises:
            ConfigurationError: Levels repeat, the start is unknown, or the rates are out of order.
        """
        if not levels or len(set(levels)) != len(levels):
            raise ConfigurationError(f"levels must be distinct, got {list(levels)}")
        if start is not None:
            one_of("start", start, levels)
        if window < 1 or not down < up <= 1:
            raise ConfigurationError(
                f"window must be at least 1 and down < up <= 1, got window={window}, up={up}, "
                f"down={down}"
            )
        self.levels, self.window, self.up, self.down = tuple(levels), window, up, down
        self._place = 0 if start is None else self.levels.index(start)
        self._results: deque[bool] = deque(maxlen=window)
        self.count = 0
        """Number of results counted so far."""
        self.moves: list[tuple[int, Level]] = []
        """`(count, level)` of each move."""
        self._by_seed: OrderedDict[int, Level] = OrderedDict()
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def level(self) -> Level:
        """The current level."""
        return self.levels[self._place]

    @property
    def success_rate(self) -> float | None:
        """Success rate in the window; None before the first result."""
        return sum(self._results) / len(self._results) if self._results else None

    def level_for(self, seed: int) -> Level:
        """Return the level of a seed's episodes: the current one when first seen.

        The last few thousand seeds keep their level. The members of a group, a retry and a replay
        therefore play the same task even if the level has changed in between.
        """
        with self._lock:
            level = self._by_seed.setdefault(seed, self.level)
            self._by_seed.move_to_end(seed)
            if len(self._by_seed) > _REMEMBERED:
                self._by_seed.popitem(last=False)
            return level

    def add_step(self, episode: str, turn: int, result: StepResult) -> StepResult:
        """Record a step's result and return the episode's; a repeated turn overwrites it.

        Results are kept here because a rollout may replace the environment during an episode.
        """
        with self._lock:
            found = self._episodes.setdefault(episode, _Episode())
            self._episodes.move_to_end(episode)
            if len(self._episodes) > _REMEMBERED:
                self._episodes.popitem(last=False)
            found.steps = {n: one for n, one in found.steps.items() if n < turn} | {turn: result}
            steps = found.steps.values()
            verdicts = [one.verdict for one in steps if one.verdict is not None]
            return StepResult(sum(one.reward for one in steps), verdicts[-1] if verdicts else None)

    def record(self, level: Level, is_success: bool, *, episode: str | None = None) -> None:
        """Count a result and change the level if the rate requires it.

        Args:
            level: The level of the episode.
            is_success: Whether it was solved.
            episode: Counts this episode once, even if its end is replayed; None always counts.
        """
        with self._lock:
            if episode is not None:
                found = self._episodes.setdefault(episode, _Episode())
                if found.is_counted:
                    return
                found.is_counted = True
            if level != self.level:
                return
            self._results.append(bool(is_success))
            self.count += 1
            if len(self._results) == self.window:
                self._decide()

    def _decide(self) -> None:
        rate = sum(self._results) / self.window
        step = 1 if rate >= self.up else -1 if rate <= self.down else 0
        place = min(max(self._place + step, 0), len(self.levels) - 1)
        if place != self._place:
            self._place = place
            self._results.clear()
            self.moves.append((self.count, self.level))

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON data, without running episodes."""
        with self._lock:
            return {
                "levels": list(self.levels),
                "window": self.window,
                "up": self.up,
                "down": self.down,
                "level": self.level,
                "results": list(self._results),
                "count": self.count,
                "moves": [list(move) for move in self.moves],
                "seeds": [list(pair) for pair in self._by_seed.items()],
            }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json` data. The same results then lead to the same levels."""
        made = cls(
            data["levels"],
            start=data["level"],
            window=data["window"],
            up=data["up"],
            down=data["down"],
        )
        made._results.extend(data["results"])
        made.count = data["count"]
        made.moves = [(count, level) for count, level in data["moves"]]
        made._by_seed.update((seed, level) for seed, level in data["seeds"])
        return made

    def save(self, path: str | Path) -> None:
        """Write the state to a file atomically.

        Raises:
            StorageError: It cannot be written.
        """
        replace_file(Path(path), json.dumps(self.to_json()).encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            StorageError: It cannot be read, or was not written by `save`.
        """
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StorageError(f"cannot read the progress in {str(path)!r}: {error}") from error

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
