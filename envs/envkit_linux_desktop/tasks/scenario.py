"""Scenarios: a goal, initial files, commands that open windows, and checks of the final files."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from envkit.seeds import derive_seed
from envkit_linux_desktop.tasks import words
from envkit_linux_desktop.tasks.checks import Check, Home, Kept, is_hidden

LEVELS: Final = (1, 2, 3, 4)
VERSION: Final = "computer-use-linux-v0"
"""Part of every seed: a new version draws different scenarios."""
TERMINAL: Final = ("xterm", "-T", "Terminal", "-fa", "DejaVu Sans Mono", "-fs", "11")
BROWSER: Final = ("chromium",)
"""The session adds the switches that its sandbox needs."""
CALC: Final = ("localc",)
WRITER: Final = ("lowriter",)
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One task on the desktop, a pure function of family, level and seed."""

    goal: str
    """What to do, in plain English."""
    files: Mapping[str, bytes]
    """Initial files by path, relative to the home folder."""
    launch: tuple[tuple[str, ...], ...]
    """Commands that open the windows, in order; paths are relative to the home folder."""
    checks: tuple[Check, ...]
    """All must hold at the end."""
    grace: float = 0.0
    """Seconds that an application may take to write its files after the last action."""

    def grade(self, home: Home) -> float:
        """Return 1.0 if every check holds on the final files, else 0.0."""
        return float(all(check.holds(home) for check in self.checks))

    def solve(self) -> dict[str, bytes]:
        """Return final files that solve the task."""
        files = dict(self.files)
        for check in self.checks:
            check.apply(files)
        return files


class Draft:
    """A scenario in the making: what families use to draw one."""

    def __init__(self, rng: random.Random, level: int, app: str) -> None:
        self.rng, self.level, self.app = rng, level, app
        self.goal, self.grace = "", 0.0
        self.files: dict[str, bytes] = {}
        self.launch: list[tuple[str, ...]] = []
        self.checks: list[Check] = []
        self._stems: set[str] = set()

    def at(self, *values: Value) -> Value:
        """Return the value of the current level."""
        return values[self.level - 1]

    def one(self, values: "tuple[Value, ...] | list[Value]") -> Value:
        """Return a random value."""
        return self.rng.choice(values)

    def some(self, values: "tuple[Value, ...] | list[Value]", count: int) -> list[Value]:
        """Return different random values."""
        return self.rng.sample(values, count)

    def path(self, ending: str, folder: str = "Documents") -> str:
        """Return a path with a new file name, so that files can meet in one folder."""
        while True:
            stem = f"{self.one(words.STEMS)}-{self.rng.randint(1, 40)}"
            if stem not in self._stems:
                self._stems.add(stem)
                return f"{folder}/{stem}.{ending}"

    def add(self, path: str, data: str | bytes) -> str:
        """Add an initial file and return its path."""
        self.files[path] = data.encode() if isinstance(data, str) else data
        return path

    def open(self, *command: str) -> None:
        """Add a command that opens a window."""
        self.launch.append(command)

    def expect(self, *checks: Check) -> None:
        """Add checks."""
        self.checks.extend(checks)

    def say(self, *phrasings: str) -> None:
        """Set the goal to one of the phrasings."""
        goal = self.one(phrasings)
        self.goal = f"T{goal[1:]}" if goal.startswith("the ") else goal

    def also(self, *phrasings: str) -> None:
        """Add a sentence to the goal in one of the phrasings."""
        self.goal += " " + self.one(phrasings)

    def finish(self) -> Scenario:
        """Return the scenario; visible files without a check must stay as they are."""
        decided = {path for check in self.checks for path in check.paths}
        gone = tuple(f"{path}/" for path in decided)
        kept = [
            Kept(path=path, data=data)
            for path, data in self.files.items()
            if path not in decided and not path.startswith(gone) and not is_hidden(path)
            if not path.endswith((".xlsx", ".docx"))  # merely saving one again changes its bytes
        ]
        return Scenario(
            goal=self.goal,
            files=dict(self.files),
            launch=tuple(self.launch),
            checks=(*self.checks, *kept),
            grace=self.grace,
        )


@dataclass(frozen=True, kw_only=True)
class Family:
    """Tasks of one kind at four levels."""

    name: str
    app: str
    draw: Callable[[Draft], None]
    """Fills the draft."""

    def scenario(self, level: int, seed: int) -> Scenario:
        """Return the scenario of this level and seed, the same on every machine."""
        rng = random.Random(derive_seed(VERSION, self.name, level, seed))
        draft = Draft(rng, level, self.app)
        self.draw(draft)
        return draft.finish()


def families(app: str, *draws: Callable[[Draft], None]) -> tuple[Family, ...]:
    """Return one family per function, named after it."""
    return tuple(Family(name=draw.__name__, app=app, draw=draw) for draw in draws)
