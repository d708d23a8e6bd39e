"""Tasks with windows: close several, move one, or resize one."""

import random
from collections.abc import Iterator

from envkit_actions.action import Action, ActionKind
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop
from envkit_desktop.families.family import Data, Family
from envkit_desktop.families.words import listed
from envkit_desktop.layout import frame, place
from envkit_desktop.widgets import TextArea, Window
from envkit_desktop.widgets.window import GRIP

_TITLES = ("Notes", "Notes 2", "Mail", "Music", "Maps", "Mail (old)", "Clock", "Photos", "Photos 2")
_SMALL = (190, 110)
"""Size of the window to resize at the start: further from every target than any tolerance."""

_ROOM = (412, 298)
"""Space that a window to resize needs to the right of and below its corner."""

_TRIES = 50
"""Positions drawn for a window; one in ten is near its corner."""


def _open_windows(desk: Desktop, rng: random.Random, titles: list[str]) -> dict[str, Window]:
    """Open windows and return them by title."""
    windows: dict[str, Window] = {}
    for title in titles:
        window = frame(desk, rng, title, title, rng.randint(170, 260), rng.randint(90, 170))
        windows[title] = window
        window.is_resizable = True
        area = TextArea(name="text", text=f"This is {title}.")
        place(window, area, 8, 8, window.client[0] - 16, window.client[1] - 30)
    return windows


class CloseWindows(Family):
    """Close the named windows and no other."""

    name = "close_windows"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw the windows and which to close."""
        titles = rng.sample(_TITLES, (3, 4, 5, 6, 7)[level - 1])
        closed = rng.sample(titles, (1, 2, 2, 3, 4)[level - 1])
        noun = "window" if len(closed) == 1 else "windows"
        return {
            "goal": f"Close the {noun} {listed(closed)}, and no other. Then end the task.",
            "titles": titles,
            "closed": closed,
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the windows."""
        _open_windows(desk, rng, data["titles"])

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each window whether it is correctly open or closed."""
        return [(desk.window(t) is None) == (t in data["closed"]) for t in data["titles"]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Close the windows one by one."""
        for title in data["closed"]:
            window = desk.window(title)
            if window is not None:
                yield from moves.close_window(desk, window)


class MoveWindow(Family):
    """Drag a window into a corner of the screen."""

    name = "move_window"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw the windows, one of them and a corner; the tolerance shrinks with the level."""
        titles = rng.sample(_TITLES, (1, 2, 3, 4, 5)[level - 1])
        corner = rng.choice(("top left", "top right", "bottom left", "bottom right"))
        slack = (60, 50, 40, 30, 20)[level - 1]
        return {
            "goal": f"Move the window {titles[0]} into the {corner} corner of the screen, at most "
            f"{slack} pixels from both edges and fully visible. Then end the task.",
            "titles": rng.sample(titles, len(titles)),
            "target": titles[0],
            "corner": corner,
            "slack": slack,
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the windows, the one to move anywhere but near its corner.

        At the centre, a drag meant for another task would move it too.
        """
        window = _open_windows(desk, rng, data["titles"])[data["target"]]
        for _ in range(_TRIES):
            if max(_away_from_corner(desk, window, data["corner"])) > 2 * data["slack"]:
                return
            window.x = rng.randint(0, desk.width - window.width)
            window.y = rng.randint(0, desk.height - window.height)

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether the window is close enough to both edges and inside the screen."""
        window = desk.window(data["target"])
        if window is None:
            return [False, False]
        across, down = _away_from_corner(desk, window, data["corner"])
        return [0 <= across <= data["slack"], 0 <= down <= data["slack"]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Drag it by its title."""
        window = desk.window(data["target"])
        if window is None or all(self.goals(desk, data)):
            return
        edge = data["slack"] // 2
        x = edge if "left" in data["corner"] else desk.width - window.width - edge
        y = edge if "top" in data["corner"] else desk.height - window.height - edge
        yield from moves.move_window(desk, window, (x, y))


def _away_from_corner(desk: Desktop, window: Window, corner: str) -> tuple[int, int]:
    """Return how far a window is from the two edges of a corner; negative beyond them."""
    right = desk.width - window.x - window.width
    bottom = desk.height - window.y - window.height
    return (window.x if "left" in corner else right, window.y if "top" in corner else bottom)


class ResizeWindow(Family):
    """Drag the corner of a window until it is wide and high enough."""

    name = "resize_window"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw the windows and a size; the tolerance shrinks with the level."""
        titles = rng.sample(_TITLES, (1, 2, 3, 4, 5)[level - 1])
        slack = (60, 40, 30, 20, 12)[level - 1]
        size = [rng.randrange(280, 380, 20), rng.randrange(200, 280, 20)]
        return {
            "goal": f"Resize the window {titles[0]} to {size[0]} pixels wide and {size[1]} high, "
            f"each give or take {slack}. Then end the task.",
            "titles": rng.sample(titles, len(titles)),
            "target": titles[0],
            "size": size,
            "slack": slack,
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the windows; the one to resize has room to grow."""
        window = _open_windows(desk, rng, data["titles"])[data["target"]]
        window.x = rng.randint(4, desk.width - _ROOM[0])
        window.y = rng.randint(4, desk.height - _ROOM[1])
        window.width, window.height = _SMALL
        for area in window.children:
            area.width, area.height = window.client[0] - 16, window.client[1] - 30

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether width and height are within the tolerance."""
        window = desk.window(data["target"])
        if window is None:
            return [False, False]
        pairs = zip((window.width, window.height), data["size"], strict=True)
        return [abs(now - wanted) <= data["slack"] for now, wanted in pairs]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Drag it by its corner."""
        window = desk.window(data["target"])
        if window is None or all(self.goals(desk, data)):
            return
        part = (window.width - GRIP, window.height - GRIP, window.width, window.height)
        yield from moves.reach(desk, window, part)
        point = moves.visible_point(desk, window, part)
        if point is not None:
            end = (
                point[0] + data["size"][0] - window.width,
                point[1] + data["size"][1] - window.height,
            )
            yield Action(kind=ActionKind.DRAG, x=point[0], y=point[1], path=(end,))
