"""Print the accessibility tree of all applications as text; runs inside the desk."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import gi  # pyright: ignore[reportMissingImports]  # a module of the system's Python

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi  # noqa: E402  # pyright: ignore[reportMissingImports]

MAX_ROWS = int(sys.argv[1])
MAX_CHILDREN = 300
STATES = ("focused", "checked", "selected", "expanded")


def walk(node: Any, depth: int) -> Iterator[tuple[int, Any, Any]]:  # noqa: ANN401  # gi has no types
    """Yield each visible node and its depth, parents first."""
    states = node.get_state_set()
    if depth > 1 and not states.contains(Atspi.StateType.SHOWING):
        return
    yield depth, node, states
    for index in range(min(node.get_child_count(), MAX_CHILDREN)):
        with contextlib.suppress(Exception):
            child = node.get_child_at_index(index)
            if child is not None:
                yield from walk(child, depth + 1)


def row(depth: int, node: Any, states: Any) -> str:  # noqa: ANN401  # gi has no types
    """Return the line of a node."""
    words = [" " * depth + node.get_role_name()]
    if name := node.get_name():
        words.append(repr(name[:120]))
    with contextlib.suppress(Exception):
        text = node.get_text_iface()
        if text is not None:
            length = min(Atspi.Text.get_character_count(text), 500)
            words.append("text=" + repr(Atspi.Text.get_text(text, 0, length)))
    with contextlib.suppress(Exception):
        box = node.get_extents(Atspi.CoordType.SCREEN)
        words.append(f"({box.x}, {box.y}) {box.width}x{box.height}")
    words += [name for name in STATES if states.contains(getattr(Atspi.StateType, name.upper()))]
    return " ".join(words)


def main() -> None:
    """Print at most `MAX_ROWS` lines."""
    for count, found in enumerate(walk(Atspi.get_desktop(0), 0)):
        if count > MAX_ROWS:
            sys.stdout.write("...\n")
            return
        if count:
            with contextlib.suppress(Exception):
                sys.stdout.write(row(*found) + "\n")


main()
