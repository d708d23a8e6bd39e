"""Base class of widgets: a named box whose public fields are its whole state, and hooks.

A widget draws itself from its fields and reacts to events by changing them; it has no other state.
So the fields decide when to repaint, and they are the state that is stored and hashed. Positions
are relative to the parent. Field values are JSON data with tuples for lists, because in-place
changes to a list would go unnoticed.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol, cast

from envkit_desktop.painter import Painter, line_height
from envkit_desktop.theme import Color

MenuItems = tuple[tuple[Any, ...], ...]
"""Each item is (text, command, items of its submenu)."""
Chord = tuple[frozenset[str], str]
"""The modifiers held and the key, by canonical names."""

PADDING: Final = 5
"""Pixels between a widget's edge and its text."""
ROW: Final = 20
"""Height of a row of a list, a table or a menu, in pixels."""


class Host(Protocol):
    """Services that the desktop offers to its widgets."""

    clipboard: str
    held: frozenset[str]
    """Keys that are down while the mouse is used, by canonical names."""

    @property
    def type_pixels(self) -> int:
        """Height of the font."""
        ...

    def emit(self, source: "Widget", kind: str, value: str = "") -> None:
        """Emit an event to the desktop's program."""
        ...

    def open_menu(self, owner: "Widget", items: MenuItems, x: int, y: int, width: int) -> None:
        """Show a menu at a place relative to its owner."""
        ...

    def siblings(self, widget: "Widget") -> "list[Widget]":
        """Return the children of the widget's parent."""
        ...


@dataclasses.dataclass(slots=True, kw_only=True)
class Widget:
    """A box on the screen."""

    name: str = ""
    """Unique in its window; empty if nothing refers to it."""
    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 0
    enabled: bool = True
    visible: bool = True
    focused: bool = False
    context: MenuItems = ()
    """The context menu."""
    children: "list[Widget]" = dataclasses.field(default_factory=list["Widget"])

    takes_focus: ClassVar[bool] = False
    is_draggable: ClassVar[bool] = False
    """Whether it can be dropped on another widget, which then gets an event."""

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw at (x, y) on the screen, without children."""

    def paint_box(self, painter: Painter, x: int, y: int, face: Color) -> None:
        """Draw the box of a field, whose frame shows the focus."""
        border = painter.theme.accent if self.focused else None
        painter.panel(x, y, self.width, self.height, face, border)

    def paint_line(self, painter: Painter, x: int, y: int, text: str, ink: Color) -> None:
        """Write a text from x on, in the middle of this widget's height."""
        top = y + (self.height - line_height(painter.theme.type_pixels)) // 2
        painter.text(x, top, text, ink)

    def child_origin(self) -> tuple[int, int]:
        """Return where the children's (0, 0) is, relative to this widget."""
        return 0, 0

    def child_box(self) -> tuple[int, int, int, int]:
        """Return the part of this widget where children show, relative to it."""
        return 0, 0, self.width, self.height

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Handle a left press at a position relative to this widget."""

    def drag(self, host: Host, x: int, y: int) -> None:
        """Handle a pointer move while the button is held."""

    def release(self, host: Host, x: int, y: int) -> None:
        """Handle the release of a button pressed on this widget."""

    def wheel(self, host: Host, dx: int, dy: int) -> bool:
        """Scroll by pixels; False leaves it to the parent."""
        return False

    def key(self, host: Host, chord: Chord) -> bool:
        """Handle a key; False leaves it to the window."""
        return False

    def write(self, host: Host, text: str) -> bool:
        """Handle typed text; False if the widget accepts none."""
        return False

    def chosen(self, host: Host, command: str) -> None:
        """Handle the command of a menu item that this widget opened."""
        host.emit(self, "command", command)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield each text that must be readable in full and the width it has, in pixels."""
        yield from ()

    def holds(self, x: int, y: int) -> bool:
        """Return whether a place relative to this widget is inside it."""
        return 0 <= x < self.width and 0 <= y < self.height


@functools.cache
def state_names(kind: type[Widget]) -> tuple[str, ...]:
    """Return the names of all fields but the children."""
    return tuple(item.name for item in dataclasses.fields(kind) if item.name != "children")


@functools.cache
def state_reader(kind: type[Widget]) -> Callable[[Widget], tuple[Any, ...]]:
    """Return the function that reads all fields but the children, as a tuple."""
    return attrgetter(*state_names(kind))


def walk(widget: Widget) -> Iterator[Widget]:
    """Yield the widget and its descendants, parents first."""
    todo = [widget]
    while todo:
        widget = todo.pop()
        yield widget
        todo += reversed(widget.children)


def as_tuples(value: Any) -> Any:  # noqa: ANN401  # any JSON data
    """Return JSON data with tuples in place of lists."""
    if isinstance(value, list | tuple):
        return tuple(as_tuples(item) for item in cast("list[Any]", value))
    return value
