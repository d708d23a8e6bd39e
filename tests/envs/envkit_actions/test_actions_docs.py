"""The page of actions says what the code does."""

import re
from pathlib import Path

from envkit_actions import FAMILIES, Action, ActionKind

PAGE = (Path(__file__).parents[3] / "docs" / "computer-use-actions.md").read_text()
ROW = re.compile(r"^\| `([\w.-]+)` \| ([^|]*) \| `(.*)` \| [^|]* \|$", re.MULTILINE)


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
