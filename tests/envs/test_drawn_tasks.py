"""Pin what the families of tasks draw: a change here changes every task that was ever named.

To accept one on purpose, write the new digests: `python tests/envs/test_drawn_tasks.py`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import envkit_desktop
from envkit_linux_desktop import LinuxDesktopTasks
from envkit_linux_desktop.source import scenario_of
from envkit_linux_desktop.tasks import FAMILIES as LINUX_FAMILIES
from envkit_linux_desktop.tasks.scenario import LEVELS as LINUX_LEVELS
from envkit_terminal import families as terminal
from envkit_terminal.tasks import GeneratedTasks

GOLDEN = Path(__file__).parents[1] / "golden" / "drawn" / "tasks.json"
SEEDS = range(3)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else sorted(value)


def _digest(rows: list[Any]) -> str:
    return hashlib.sha256(json.dumps(rows, default=_plain).encode()).hexdigest()[:16]


def _linux_rows(family: str) -> list[Any]:
    rows: list[Any] = []
    for level in LINUX_LEVELS:
        source = LinuxDesktopTasks(level=level, families=[family])
        for seed in SEEDS:
            task = source.task(seed)
            scenario = scenario_of(task)
            checks = [[type(check).__name__, asdict(check)] for check in scenario.checks]  # pyright: ignore[reportArgumentType]  # each check is a dataclass
            rows.append([task, asdict(scenario) | {"checks": checks}])
    return rows


def _terminal_rows(family: str) -> list[Any]:
    source = GeneratedTasks(split="train", families=(family,), levels=terminal.LEVELS)
    return [source.task(index) for index in range(len(SEEDS) * len(terminal.LEVELS))]


def _desktop_rows(family: str) -> list[Any]:
    return [
        envkit_desktop.DesktopTasks(level=level, families=[family]).task(seed)
        for level in envkit_desktop.LEVELS
        for seed in SEEDS
    ]


KINDS = {
    "linux_desktop": (LINUX_FAMILIES, _linux_rows),
    "terminal": (terminal.FAMILIES, _terminal_rows),
    "desktop": (envkit_desktop.FAMILIES, _desktop_rows),
}


def _digests(kind: str) -> Mapping[str, str]:
    families, rows_of = KINDS[kind]
    return {family: _digest(rows_of(family)) for family in sorted(families)}


@pytest.mark.parametrize("kind", KINDS)
def test_families_draw_the_same_tasks_as_ever(kind: str) -> None:
    assert _digests(kind) == json.loads(GOLDEN.read_text())[kind]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({kind: _digests(kind) for kind in KINDS}, indent=1) + "\n")
