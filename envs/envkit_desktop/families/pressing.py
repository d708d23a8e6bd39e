"""Tasks that press one button among many, or choose an item deep in menus."""

import random
from collections.abc import Iterator
from typing import Any

from envkit_actions.action import Action
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.families.family import OVER, Data, Family, is_feasible, or_fail
from envkit_desktop.families.words import ACTIONS, FOLDERS, OPTIONS, listed
from envkit_desktop.layout import MARGIN, button_width, clutter, frame, label, place
from envkit_desktop.widgets import Button, MenuBar
from envkit_desktop.widgets.menus import BAR_HEIGHT
from envkit_desktop.widgets.widget import as_tuples


class PressButton(Family):
    """Press named buttons in a given order; the last press submits the task."""

    name = "press_button"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw the buttons; from level 3 on they differ only in a second word."""
        count = (9, 9, 12, 15, 18)[level - 1]
        texts = rng.sample(ACTIONS, count)
        if level >= 3:
            verbs = rng.sample(ACTIONS, count // 3)
            texts = [f"{verb} {what}" for verb in verbs for what in ("all", "page", "copy")]
            rng.shuffle(texts)
        targets = rng.sample(texts, (2, 2, 2, 3, 4)[level - 1])
        said = listed([f'"{text}"' for text in targets])
        feasible = is_feasible(rng, level)
        return {
            "goal": f"Press {said} in this order, and no other.{or_fail(level)}",
            "texts": texts,
            "targets": targets,
            "disabled": [] if feasible else [rng.choice(targets)],
            "feasible": feasible,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with buttons in three columns."""
        texts: list[str] = data["texts"]
        width = max(button_width(text, desk.type_pixels) for text in texts)
        rows = -(-len(texts) // 3)
        window = frame(desk, rng, "tools", "Tools", 3 * width + 44, rows * 36 + 20)
        for index, text in enumerate(texts):
            x, y = MARGIN + index % 3 * (width + 10), MARGIN + index // 3 * 36
            is_enabled = text not in data["disabled"]
            place(window, Button(name=text, text=text, enabled=is_enabled), x, y, width, 26)
        clutter(desk, rng, data["clutter"])

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Record each press."""
        if event.kind == "clicked" and event.window.name == "tools":
            desk.model.setdefault("pressed", []).append(event.source.name)
            desk.model[OVER] = len(desk.model["pressed"]) == len(data["targets"])
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each press whether it was the right one."""
        pressed = desk.model.get("pressed", [])
        return [pressed[at : at + 1] == [text] for at, text in enumerate(data["targets"])]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Press the next one."""
        pressed = len(desk.model.get("pressed", []))
        yield from moves.press(desk, desk.find(Button, "tools", data["targets"][pressed]))


class NestedMenu(Family):
    """Choose a menu item, at level 3 and above in a submenu."""

    name = "nested_menu"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw menus of one to three layers, and the path to take."""
        depth = (1, 1, 2, 2, 3)[level - 1]
        width = (3, 5, 4, 5, 5)[level - 1]
        titles = rng.sample(
            ("File", "Edit", "View", "Tools", "Window", "Format"), min(5, level + 1)
        )
        menus: list[Any] = [[title, _layer(rng, depth, width)] for title in titles]
        title, layer = rng.choice(menus)
        path = [title]
        while layer:
            text, _, layer = rng.choice([item for item in layer if item[2]] or layer)
            path.append(text)
        feasible = is_feasible(rng, level)
        if not feasible:
            _remove(menus, path)
        return {
            "goal": f"Choose {' > '.join(path)} from the menu bar, then end the task."
            f"{or_fail(level)}",
            "menus": menus,
            "path": path,
            "feasible": feasible,
            "clutter": max(0, level - 2),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the bar."""
        window = frame(desk, rng, "editor", "Editor", 400, 200)
        menus = as_tuples(_with_commands(data["menus"]))
        place(window, MenuBar(name="bar", menus=menus), 0, 0, window.client[0], BAR_HEIGHT)
        status = label(window, "Nothing chosen yet", 16, 60, desk.type_pixels, "status")
        status.width = window.client[0] - 2 * 16
        clutter(desk, rng, data["clutter"], above=int(data["clutter"] > 1))

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Record the last choice."""
        if event.kind == "command":
            desk.model["chosen"] = event.value
            desk.say("editor", "status", "Chosen: " + event.value.split(" > ")[-1])
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether it was the right item."""
        return [desk.model.get("chosen") == " > ".join(data["path"])]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Open the menus in order."""
        if not all(self.goals(desk, data)):
            yield from moves.menu(desk, desk.find(MenuBar, "editor", "bar"), data["path"])


def _layer(rng: random.Random, depth: int, width: int) -> list[list[Any]]:
    """Return items as [text, "", items of the submenu]."""
    texts = rng.sample(ACTIONS if depth == 1 else (*FOLDERS, *OPTIONS), width)
    inner = rng.sample(range(width), min(width, 2)) if depth > 1 else []
    return [
        [text, "", _layer(rng, depth - 1, width) if index in inner else []]
        for index, text in enumerate(texts)
    ]


def _remove(menus: list[Any], path: list[str]) -> None:
    """Remove the item at the end of a path from its menu."""
    items: list[Any] = next(layer for title, layer in menus if title == path[0])
    for text in path[1:-1]:
        items = next(inner for other, _, inner in items if other == text)
    items.remove(next(item for item in items if item[0] == path[-1]))


def _with_commands(menus: list[Any]) -> list[Any]:
    """Return the menus with each item's path as its command."""

    def name(items: list[Any], path: str) -> list[Any]:
        return [
            [text, f"{path} > {text}", name(inner, f"{path} > {text}")] for text, _, inner in items
        ]

    return [[title, name(items, title)] for title, items in menus]
