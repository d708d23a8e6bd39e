"""Place widgets in windows by measured text, and open unrelated windows."""

import random
from collections.abc import Sequence
from typing import Final

from envkit_desktop.desktop import Desktop
from envkit_desktop.painter import text_width
from envkit_desktop.widgets import Button, Label, TextArea, Widget, Window

MARGIN: Final = 12
LINE: Final = 28
"""Height of a row of a form, in pixels."""
CONTROL: Final = 24
"""Height of a field or a button."""


def frame(
    desk: Desktop, rng: random.Random, name: str, title: str, width: int, height: int
) -> Window:
    """Open a window of a client size in pixels, somewhere on the screen."""
    width, height = min(width + 2, desk.width - 8), min(height + 25, desk.height - 8)
    return desk.open(
        Window(
            name=name,
            title=title,
            width=width,
            height=height,
            x=rng.randint(4, desk.width - width - 4),
            y=rng.randint(4, desk.height - height - 4),
        )
    )


def label(parent: Widget, text: str, x: int, y: int, pixels: int, name: str = "") -> Label:
    """Add a label as wide as its text."""
    made = Label(name=name, text=text, x=x, y=y, width=text_width(text, pixels) + 2, height=CONTROL)
    parent.children.append(made)
    return made


def place(
    parent: Widget, widget: Widget, x: int, y: int, width: int, height: int = CONTROL
) -> None:
    """Add a widget with the given box, in pixels relative to the parent."""
    widget.x, widget.y, widget.width, widget.height = x, y, width, height
    parent.children.append(widget)


def button_width(text: str, pixels: int) -> int:
    """Return the width of a button of this text."""
    return max(64, text_width(text, pixels) + 24)


def buttons(window: Window, texts: Sequence[str], pixels: int) -> None:
    """Add buttons at the bottom right. Their names are their texts; the first is the default."""
    right, (_, bottom) = window.client[0] - MARGIN, window.client
    for index, text in reversed(list(enumerate(texts))):
        width = button_width(text, pixels)
        right -= width
        made = Button(
            name=text,
            text=text,
            is_default=index == 0 and len(texts) > 1,
            is_cancel=text == "Cancel",
        )
        place(window, made, right, bottom - CONTROL - MARGIN + 2, width)
        right -= 8


def widest(texts: Sequence[str], pixels: int) -> int:
    """Return the width of the widest text in pixels."""
    return max((text_width(text, pixels) for text in texts), default=0) + 2


_NOTES: Final = (
    ("Notes", "Buy stamps\nCall the plumber\nReturn the library books"),
    ("Reminder", "Staff meeting at 10:30\nRoom 4, second floor"),
    ("Log", "09:02 backup started\n09:14 backup finished\n09:15 mail checked"),
    ("Draft", "Dear neighbours,\nthe lift is repaired\non Tuesday."),
    ("Shopping", "Flour\nOlive oil\nLemons\nRice"),
    ("Ideas", "A smaller index\nA larger sample\nAsk for a second opinion"),
)


def clutter(desk: Desktop, rng: random.Random, count: int, *, above: int = 0) -> None:
    """Open windows unrelated to the task.

    Args:
        desk: The desktop, with the task's windows already open.
        rng: Chooses texts and places.
        count: Number of windows.
        above: Number of them to place above the task's windows.
    """
    for index, (title, text) in enumerate(rng.sample(_NOTES, count)):
        window = frame(desk, rng, f"clutter{index}", title, 200, 110)
        area = TextArea(name="text", text=text)
        place(window, area, 6, 6, window.client[0] - 12, window.client[1] - 12)
        if index >= above:
            desk.windows.remove(window)
            desk.windows.insert(1, window)
    desk.raise_window(desk.top)
