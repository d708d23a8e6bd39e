"""The page of actions says what the code does."""

import re
from pathlib import Path

import pytest

from envkit_actions import FAMILIES, Action, ActionKind
from envkit_desktop import ComputerUseEnv

PAGE = (Path(__file__).parents[3] / "docs" / "computer-use-actions.md").read_text()
ROW = re.compile(r"^\| `([\w.-]+)` \| ([^|]*) \| `(.*)` \| [^|]* \|$", re.MULTILINE)

PLAYED = dict(re.findall(r"^`([\w.-]+)`:\n\n```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL))


def test_page_shows_a_click_of_every_family() -> None:
    rows = ROW.findall(PAGE)

    assert [name for name, _, _ in rows] == list(FAMILIES)
    for name, _, example in rows:
        family = FAMILIES[name]
        parsed = family.parse(example, family.space((1280, 720)))
        assert parsed.actions == (Action(kind=ActionKind.CLICK, x=640, y=360),), name


def test_page_names_what_every_family_counts() -> None:
    for name, coordinates, _ in ROW.findall(PAGE):
        space = FAMILIES[name].space((1280, 720))
        extent = f"{space.extent.width}x{space.extent.height}"
        expected = {
            "screen": "pixels of the screenshot",
            "resized": f"pixels of the resized image ({extent})",
            "normalised": f"0 to {space.scale}",
        }
        assert coordinates == expected[space.kind], name


def test_page_plays_every_dialect_that_came_last() -> None:
    assert PLAYED.keys() == {"glm-4.5v", "autoglm-phone", "gemini-2.5", "gemini-3.5"}


@pytest.mark.parametrize("name", PLAYED)
def test_played_example_solves_its_task(name: str) -> None:
    env = ComputerUseEnv(action=name, families=["fill_form"], level=1)
    env.reset(seed=1)
    assert env.task["goal"].startswith("Fill in the form: Phone 098 612820.")

    steps = [env.step(reply) for reply in PLAYED[name].split("\n---\n")]

    assert [step.info["parse_error"] for step in steps] == [None] * len(steps)
    assert steps[-1].reward == 1.0
