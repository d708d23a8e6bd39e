"""The part of the oracle that edits a channel in Xfce's settings editor."""

from collections.abc import Iterable, Mapping
from typing import Final

from envkit_linux_desktop.tasks.configuring import Channel, Values, channel_path
from envkit_linux_desktop.tasks.moves import Moves, View, await_window, key, text, wait
from envkit_linux_desktop.tasks.reader import read

EDITOR: Final = "Settings Editor"
"""Its title."""


def edit_channel(check: Channel, files: Mapping[str, bytes], view: View) -> Moves:
    """Yield the input that resets, changes and adds properties of the first channel."""
    before: Values = read("xfconf", files[channel_path(check.name)])["model"]["properties"]
    rows = _rows(before)
    yield wait(1.0)
    yield key("home")  # in the list of channels
    yield key("tab")
    yield key("tab")
    yield wait(0.3)
    for path in sorted(before, key=rows.index, reverse=True):  # rows above one stay in place
        if path in check.absent:
            yield from _select(rows.index(path))
            yield from _reset(view)
        elif path in check.values and before[path][1] != check.values[path][1]:
            yield from _select(rows.index(path))
            yield key("enter")
            yield from await_window("Edit Property", view)
            yield from _fill(*check.values[path])
            yield from _save(view)
    for path, (kind, value) in check.values.items():
        if path not in before:
            yield key("alt", "a")
            yield from await_window("New Property", view)
            yield key("ctrl", "a")
            yield text(path)
            yield key("tab")
            yield key("down")  # the first type is a text, and its field gets the focus
            yield wait(0.3)
            yield from _fill(kind, value)
            yield from _save(view)


def _rows(paths: Iterable[str]) -> list[str]:
    """Return the rows of the tree, each group above its properties."""
    parts = [tuple(path.split("/")) for path in paths]
    rows = {part[:count] for part in parts for count in range(2, len(part) + 1)}
    return ["/".join(row) for row in sorted(rows)]


def _select(row: int) -> Moves:
    yield key("home")
    for _ in range(row):
        yield key("down")


def _reset(view: View) -> Moves:
    yield key("alt", "r")
    yield from await_window("", view)  # the question has no title
    yield key("tab")
    yield key("space")
    yield from await_window(EDITOR, view)


def _fill(kind: str, value: str) -> Moves:
    if kind == "bool":
        yield key("space")
    else:
        yield key("ctrl", "a")
        yield text(value)


def _save(view: View) -> Moves:
    """Go over "Cancel" to "Save" and press it."""
    yield key("tab")
    yield key("tab")
    yield key("space")
    yield from await_window(EDITOR, view)
