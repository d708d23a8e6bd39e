"""The certificates of the visual worlds: complete, passed, and right for a part of their cells."""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from envkit_visual.catalogue import WORLDS
from envkit_visual.world import LEVELS

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs/environments/visual/certificates.json"
ROWS: list[dict[str, Any]] = json.loads(TABLE.read_text())
SLOW = ("four", 4)
"""Its search takes a minute for 40 episodes."""
CELLS = [
    (row["world"], row["level"], label)
    for row in ROWS
    if (row["world"], row["level"]) != SLOW
    for label in row["solved"]
]
AGAIN = random.Random(8).sample(CELLS, len(CELLS) // 8)
"""The cells that are measured again."""
EPISODES = 40


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "visual"))
    import blind  # pyright: ignore[reportMissingImports]

    yield blind
    del sys.modules["blind"]


def test_every_world_is_certified_at_every_level_under_its_stated_chance() -> None:
    assert [(row["world"], row["level"]) for row in ROWS] == [
        (name, level) for name in sorted(WORLDS) for level in LEVELS
    ]
    assert [row["world"] for row in ROWS if not row["passed"]] == []
    assert all(row["chance"] == WORLDS[row["world"]].chance for row in ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level", "label"), AGAIN)
def test_policy_that_does_not_see_still_fails(
    name: str, level: int, label: str, blind: Any
) -> None:
    cell = blind.Cell(name=name, level=level)
    env, policy = cell.env(), blind.POLICIES[label](cell)
    solved = sum(blind.solves(env, seed, policy) for seed in cell.seeds("again", EPISODES))
    chance = WORLDS[name].chance
    deviation = math.sqrt(EPISODES * max(chance, 0.02) * (1 - chance))
    assert solved <= EPISODES * (chance + 0.05) + 3 * deviation
