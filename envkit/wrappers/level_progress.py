"""Which difficulty comes next, by the success rate at the present one."""

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from envkit.errors import ConfigurationError, StorageError
from envkit.files import replace_file

Level = int | float | str
"""A value of an environment's level argument, or of a task's level."""
_REMEMBERED: Final = 4096
"""Seeds whose level, and episodes whose rewards, are kept."""


@dataclass(slots=True)
class _Episode:
    """What an unfinished or newly finished episode earned."""

    rewards: dict[int, float] = field(default_factory=dict[int, float])  # by turn
    is_counted: bool = False


class LevelProgress:
    """A level that moves up and down with the success rate of the last results at it.

    When the window is full, a rate of at least `up` moves one level up and a rate of at most `down`
    one level down; a move empties the window, and results that come late, from another level, count
    no more. The sequence of results decides everything. One instance is shared by all environments
    of a rollout, on any thread; a copy of it is itself.
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
        """Begin at a level.

        Args:
            levels: From the easiest to the hardest.
            start: The first level; None takes the easiest.
            window: How many results at a level decide about it.
            up: Success rate from which on it gets harder.
            down: Success rate up to which it gets easier; below 0 it never does.

        Raises:
            ConfigurationError: Repeated levels, an unknown start, or rates in the wrong order.
        """
        if not levels or len(set(levels)) != len(levels):
            raise ConfigurationError(f"levels must be different ones, got {list(levels)}")
        if start is not None and start not in levels:
            raise ConfigurationError(f"start must be one of {list(levels)}, got {start!r}")
        if window < 1 or not down < up <= 1:
            raise ConfigurationError(
                f"window must be at least 1 and down < up <= 1, got window={window}, up={up}, "
                f"down={down}"
            )
        self.levels, self.window, self.up, self.down = tuple(levels), window, up, down
        self._place = 0 if start is None else self.levels.index(start)
        self._results: deque[bool] = deque(maxlen=window)
        self.count = 0
        """Results that counted so far."""
        self.moves: list[tuple[int, Level]] = []
        """`(count, level)` of each move."""
        self._by_seed: OrderedDict[int, Level] = OrderedDict()
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def level(self) -> Level:
        """The present level."""
        return self.levels[self._place]

    @property
    def success_rate(self) -> float | None:
        """Of the results in the window; None before the first."""
        return sum(self._results) / len(self._results) if self._results else None

    def level_for(self, seed: int) -> Level:
        """Return the level of a seed's episodes: the present one when the seed is first seen.

        The last few thousand seeds keep theirs, so that the members of a group, a retry and a
        replay play the same task although the level has moved on in between.
        """
        with self._lock:
            level = self._by_seed.setdefault(seed, self.level)
            self._by_seed.move_to_end(seed)
            if len(self._by_seed) > _REMEMBERED:
                self._by_seed.popitem(last=False)
            return level

    def add_reward(self, episode: str, turn: int, reward: float) -> float:
        """Note a step's reward and return the episode's sum; a repeated turn replaces the old one.

        Kept here and not in the environment, which a rollout may replace in the middle of an
        episode.
        """
        with self._lock:
            found = self._episodes.setdefault(episode, _Episode())
            self._episodes.move_to_end(episode)
            if len(self._episodes) > _REMEMBERED:
                self._episodes.popitem(last=False)
            kept = {n: value for n, value in found.rewards.items() if n < turn}
            found.rewards = {**kept, turn: reward}
            return sum(found.rewards.values())

    def record(self, level: Level, is_success: bool, *, episode: str | None = None) -> None:
        """Count a result and move where the rate says so.

        Args:
            level: That the episode was played at.
            is_success: Whether it was solved.
            episode: Counts this episode once, however often its end is reached; None counts always.
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
        """Return the whole state as JSON data; episodes that run are not part of it."""
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
        """Rebuild from `to_json`; the same results then lead to the same levels."""
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
        """Write the state to a file, whole or not at all.

        Raises:
            StorageError: It cannot be written.
        """
        replace_file(Path(path), json.dumps(self.to_json()).encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            StorageError: It cannot be read, or is no such file.
        """
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"cannot read the progress in {str(path)!r}: {error}") from error

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
