"""What every widget is: a box with a name, public fields that are its whole state, and hooks.

A widget draws itself from its fields and reacts to events by changing them; it keeps nothing else.
So the fields tell when to repaint, and make up the state that is stored and hashed. Positions are
relative to the parent. Field values are JSON data with tuples for lists, because a list that is
changed in place would not be noticed.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol, cast

from envkit_desktop.painter import Painter

MenuItems = tuple[tuple[Any, ...], ...]
"""Each item is (text, command, items of its submenu)."""
Chord = tuple[frozenset[str], str]
"""The modifiers held and the key, by canonical names."""

PADDING: Final = 5
"""Pixels between a widget's edge and its text."""
ROW: Final = 20
"""Height of a row of a list, a table or a menu, in pixels."""


class Host(Protocol):
    """What a widget may ask of the desktop that it is on."""

    clipboard: str
    held: frozenset[str]
    """Keys that are down while the mouse is used, by canonical names."""

    @property
    def type_pixels(self) -> int:
        """Height of the font."""
        ...

    def emit(self, source: "Widget", kind: str, value: str = "") -> None:
        """Tell the program behind the desktop what happened."""
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
    """Unique in its window; empty for what nobody refers to."""
    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 0
    enabled: bool = True
    visible: bool = True
    focused: bool = False
    context: MenuItems = ()
    """The menu of the right button."""
    children: "list[Widget]" = dataclasses.field(default_factory=list["Widget"])

    takes_focus: ClassVar[bool] = False
    is_draggable: ClassVar[bool] = False
    """Whether a drag may end on another widget, which is then told."""

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw at (x, y) on the screen, children left out."""

    def child_origin(self) -> tuple[int, int]:
        """Return where the children's (0, 0) is, relative to this widget."""
        return 0, 0

    def child_box(self) -> tuple[int, int, int, int]:
        """Return the part of this widget where children show, relative to it."""
        return 0, 0, self.width, self.height

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Take the left button's press at a place relative to this widget."""

    def drag(self, host: Host, x: int, y: int) -> None:
        """Take a move of the pointer while the button is held."""

    def release(self, host: Host, x: int, y: int) -> None:
        """Take the release of the button that was pressed on this widget."""

    def wheel(self, host: Host, dx: int, dy: int) -> bool:
        """Scroll by pixels; False leaves it to the parent."""
        return False

    def key(self, host: Host, chord: Chord) -> bool:
        """Take a key; False leaves it to the window."""
        return False

    def write(self, host: Host, text: str) -> bool:
        """Take typed text; False where text means nothing here."""
        return False

    def chosen(self, host: Host, command: str) -> None:
        """Take the command of an item of a menu that this widget opened."""
        host.emit(self, "command", command)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield each text that must be readable in full and the width it has, in pixels."""
        yield from ()

    def holds(self, x: int, y: int) -> bool:
        """Return whether a place relative to this widget is inside of it."""
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
    """Yield the widget and all below it, parents first."""
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
