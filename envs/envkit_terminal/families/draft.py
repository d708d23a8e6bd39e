"""What families use to draw a task."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

LEVELS: Final = (1, 2, 3)
Value = TypeVar("Value")

NOUNS: Final = (
    "amber", "anchor", "apple", "atlas", "beacon", "birch", "bridge", "canyon", "cedar",
    "cobalt", "comet", "copper", "coral", "delta", "ember", "falcon", "fern", "garnet",
    "harbor", "hazel", "indigo", "island", "jasper", "juniper", "lantern", "lemon", "linen",
    "maple", "marble", "meadow", "nectar", "nickel", "oasis", "olive", "onyx", "opal", "orchid",
    "otter", "pebble", "pepper", "quartz", "raven", "river", "saffron", "sierra", "silver",
    "spruce", "summit", "topaz", "violet", "walnut", "willow", "winter", "zephyr",
)  # fmt: skip
FOLDERS: Final = ("archive", "data", "inbox", "notes", "office", "project", "records", "work")


@dataclass(kw_only=True)
class Draft:
    """A task in the making."""

    rng: random.Random
    level: int
    goal: str = ""
    files: dict[str, Any] = field(default_factory=dict[str, Any])
    setup: list[str] = field(default_factory=list[str])
    checks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    solution: list[str] = field(default_factory=list[str])
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def at(self, *values: Value) -> Value:
        """Return the value of the current level."""
        return values[self.level - 1]

    def one(self, values: "tuple[Value, ...] | list[Value]") -> Value:
        """Return a random value."""
        return self.rng.choice(values)

    def words(self, count: int) -> list[str]:
        """Return different nouns."""
        return self.rng.sample(NOUNS, count)

    def folder(self) -> str:
        """Return a folder's path, one of tens of thousands."""
        return f"{self.one(FOLDERS)}/{self.name()}"

    def name(self) -> str:
        """Return a name of two nouns, one of thousands."""
        return "-".join(self.words(2))

    def say(self, *phrasings: str) -> None:
        """Set the goal to one of the phrasings."""
        self.goal = self.one(phrasings)

    def expect(self, path: str, text: str) -> None:
        """Check that a file has a text."""
        self.checks.append({"type": "file", "path": path, "text": text})

    def expect_gone(self, path: str) -> None:
        """Check that a path does not exist."""
        self.checks.append({"type": "absent", "path": path})

    def keep(self, *paths: str) -> None:
        """Check that files are as they were."""
        for path in paths:
            self.expect(path, self.files[path])

    def expect_run(self, command: str, output: str, files: dict[str, Any] | None = None) -> None:
        """Check what a command prints in a fresh sandbox with test files in /tests."""
        check = {"type": "run", "command": command, "output": output}
        self.checks.append({**check, "files": files or {}, "code": 0})


Draw = Callable[[Draft], None]
