"""The desktop: windows in z-order, focus, clipboard, clock, and its program.

Its whole state is JSON data (`to_json`, `from_json`). Mouse and keyboard act on it in
`envkit_desktop.pointer` and `envkit_desktop.keyboard`; `envkit_desktop.screen` draws
it.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from envkit.errors import ConfigurationError
from envkit_desktop.popups import Popup, popup_window
from envkit_desktop.theme import THEMES, Theme
from envkit_desktop.widgets import Label, Menu, Progress, Widget, Window, from_json, to_json
from envkit_desktop.widgets import walk as walk_tree
from envkit_desktop.widgets.menus import menu_width
from envkit_desktop.widgets.widget import MenuItems, as_tuples
from envkit_desktop.widgets.window import TITLE

BACKGROUND: Final = "background"
"""Name of the pinned window below all others."""
SECONDS_PER_ACTION: Final = 0.1
_KEPT_ON_SCREEN: Final = 60
"""Pixels of a window that stay visible when it is moved to an edge."""

W = TypeVar("W", bound=Widget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event that the desktop's program receives."""

    window: Window
    source: Widget
    kind: str
    """"clicked", "changed", "selected", "opened", "sorted", "command", "dropped", "closing",
    "shortcut" or "finished"."""
    value: str = ""
    target: Widget | None = None
    """For a drop, the widget under the pointer."""


Program = Callable[["Desktop", Event], bool]
"""Reacts to an event. Returns True to keep the window open on "closing"."""


def no_program(desk: "Desktop", event: Event) -> bool:
    """Ignore every event."""
    return False


class Desktop:
    """Windows, and state outside of them."""

    def __init__(
        self, *, width: int, height: int, theme: int = 0, program: Program = no_program
    ) -> None:
        """Create an empty desktop.

        Args:
            width: Size in pixels.
            height: Size in pixels.
            theme: Index into `THEMES`.
            program: Reacts to events; not part of the state.
        """
        self.width, self.height = width, height
        self.theme_index = theme
        self.program = program
        background = Window(name=BACKGROUND, width=width, height=height, is_pinned=True)
        self.windows: list[Window] = [background]
        self.menus: list[Menu] = []
        self.clipboard = ""
        self.clock = 0.0
        self.pointer: tuple[int, int] = (width // 2, height // 2)
        self.model: dict[str, Any] = {}
        """The program's data: files, settings, whether a form was sent. JSON data."""
        self.popups: tuple[Popup, ...] = ()
        """Dialogs that will still appear, in order."""
        self.action_count = 0
        self.capture: Widget | None = None
        """The pressed widget, which receives all moves until the release."""
        self.pressed_at: tuple[int, int] = (0, 0)
        self.focus: Widget | None = None
        self.held: frozenset[str] = frozenset()
        """Keys held during the current action; empty between actions, so not part of the state."""

    @property
    def theme(self) -> Theme:
        """Colours and size of type."""
        return THEMES[self.theme_index]

    @property
    def type_pixels(self) -> int:
        """Height of the font."""
        return self.theme.type_pixels

    @property
    def background(self) -> Window:
        """The pinned window with the desktop's icons."""
        return self.windows[0]

    @property
    def top(self) -> Window:
        """The window above all others; the background if there is no other."""
        return self.windows[-1]

    @property
    def modal(self) -> Window | None:
        """The dialog that blocks everything else; None if there is none."""
        return next((window for window in reversed(self.windows) if window.is_modal), None)

    def window(self, name: str) -> Window | None:
        """Return the open window of that name; None if there is none."""
        return next((window for window in self.windows if window.name == name), None)

    def find(self, kind: type[W], window: str, name: str) -> W:
        """Return a widget by the names of its window and its own.

        Raises:
            ConfigurationError: The window is closed, or holds no such widget.
        """
        owner = self.window(window)
        for widget in () if owner is None else walk_tree(owner):
            if widget.name == name and isinstance(widget, kind):
                return widget
        raise ConfigurationError(
            f"window {window!r} must be open and hold a {kind.__name__} {name!r}, "
            f"got the windows {[item.name for item in self.windows]}"
        )

    def open(self, window: Window) -> Window:
        """Put a window on top, fitted to the screen."""
        window.x = max(0, min(window.x, self.width - window.width))
        window.y = max(0, min(window.y, self.height - window.height))
        self.windows.append(window)
        self.menus.clear()
        self._mark_active()
        return window

    def close(self, window: Window) -> None:
        """Close a window; the background cannot be closed."""
        if window.is_pinned or window not in self.windows:
            return
        inside = [id(widget) for widget in walk_tree(window)]
        if id(self.capture) in inside:
            self.capture = None
        if id(self.focus) in inside:
            self.set_focus(None)
        self.windows = [item for item in self.windows if item is not window]
        self.menus.clear()
        self._mark_active()

    def raise_window(self, window: Window) -> None:
        """Put an open window above the others; a modal dialog stays above all."""
        if not window.is_pinned and window is not self.top and self.modal is None:
            self.windows = [item for item in self.windows if item is not window] + [window]
        self._mark_active()

    def _mark_active(self) -> None:
        for window in self.windows:
            window.is_active = window is self.windows[-1] and not window.is_pinned

    def keep_reachable(self, window: Window) -> None:
        """Move a window back until its title bar can be grabbed."""
        least = _KEPT_ON_SCREEN - window.width
        window.x = max(least, min(self.width - _KEPT_ON_SCREEN, window.x))
        window.y = max(0, min(self.height - TITLE, window.y))

    def window_of(self, widget: Widget) -> Window | None:
        """Return the open window that holds a widget; None if there is none."""
        for window in self.windows:
            if any(item is widget for item in walk_tree(window)):
                return window
        return None

    def origin_of(self, widget: Widget) -> tuple[int, int] | None:
        """Return where a widget's (0, 0) is on the screen; None for one that is not open."""
        for window in self.windows:
            for item, x, y in placed(window):
                if item is widget:
                    return x, y
        return None

    def set_focus(self, widget: Widget | None) -> None:
        """Focus a widget; None removes the focus."""
        if self.focus is not None:
            self.focus.focused = False
        self.focus = widget
        if widget is not None:
            widget.focused = True

    def siblings(self, widget: Widget) -> list[Widget]:
        """Return the children of the widget's parent."""
        for window in self.windows:
            for parent in walk_tree(window):
                if any(child is widget for child in parent.children):
                    return parent.children
        return []

    def open_menu(self, owner: Widget, items: MenuItems, x: int, y: int, width: int) -> None:
        """Show a menu at a place relative to its owner, moved to fit on the screen."""
        window, origin = self.window_of(owner), self.origin_of(owner)
        if window is not None and origin is not None and items:
            self.menus.clear()
            self.add_menu(window.name, owner.name, items, origin[0] + x, origin[1] + y, width)

    def add_menu(
        self, window: str, owner: str, items: MenuItems, x: int, y: int, width: int
    ) -> None:
        """Show a menu above those that are open."""
        width = max(width, menu_width(items, self.type_pixels))
        menu = Menu(window=window, owner=owner, items=items, x=x, y=y, width=width)
        menu.x = max(0, min(x, self.width - width))
        menu.y = max(0, min(y, self.height - menu.height))
        self.menus.append(menu)

    def choose(self, menu: Menu, row: int) -> None:
        """Choose an item: open its submenu, or close all menus and tell the owner."""
        _, command, inner = menu.items[row]
        del self.menus[self.menus.index(menu) + 1 :]
        if inner:
            menu.highlighted = row
            x, y = menu.x + menu.width - 2, menu.y + row * 20
            self.add_menu(menu.window, menu.owner, inner, x, y, 0)
            return
        self.menus.clear()
        owner = self.find(Widget, menu.window, menu.owner)
        owner.chosen(self, command)

    def emit(self, source: Widget, kind: str, value: str = "") -> None:
        """Tell the program what happened to a widget."""
        window = source if isinstance(source, Window) else self.window_of(source)
        if window is not None:
            self.tell(Event(window=window, source=source, kind=kind, value=value))

    def tell(self, event: Event) -> None:
        """Send an event to the program, after the desktop's own reactions."""
        if event.window.name.startswith(Popup.PREFIX):
            if event.kind in ("clicked", "closing"):
                self.close(event.window)
            return
        if not self.program(self, event) and event.kind == "closing":
            self.close(event.window)

    def advance(self, seconds: float) -> None:
        """Let time pass on the desktop's clock."""
        self.clock = round(self.clock + seconds, 6)
        for window in list(self.windows):
            for widget in list(walk_tree(window)):
                if isinstance(widget, Progress) and widget.tick(self.clock):
                    self.emit(widget, "finished")

    def end_action(self) -> None:
        """Count an action, and show the next dialog if it is due."""
        self.action_count += 1
        self.advance(SECONDS_PER_ACTION)
        if self.popups and self.action_count >= self.popups[0].after and self.modal is None:
            popup, self.popups = self.popups[0], self.popups[1:]
            self.capture = None
            self.set_focus(None)
            self.open(popup_window(popup, self.width, self.height, self.type_pixels))

    def say(self, window: str, name: str, text: str) -> None:
        """Set a label's text if its window is still open."""
        if self.window(window) is not None:
            self.find(Label, window, name).text = text

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON data, independent of later changes."""
        return {
            "size": [self.width, self.height],
            "theme": self.theme_index,
            "windows": [to_json(window) for window in self.windows],
            "menus": [
                [m.window, m.owner, m.items, m.x, m.y, m.width, m.highlighted] for m in self.menus
            ],
            "clipboard": self.clipboard,
            "clock": self.clock,
            "pointer": list(self.pointer),
            "model": copy.deepcopy(self.model),
            "popups": [popup.to_json() for popup in self.popups],
            "action_count": self.action_count,
            "capture": self._path_of(self.capture),
            "pressed_at": list(self.pressed_at),
            "focus": self._path_of(self.focus),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], *, program: Program = no_program) -> "Desktop":
        """Return the desktop that `to_json` wrote."""
        width, height = data["size"]
        desk = cls(width=width, height=height, theme=data["theme"], program=program)
        desk.windows = [cast(Window, from_json(window)) for window in data["windows"]]
        for window, owner, items, x, y, menu_wide, lit in data["menus"]:
            desk.menus.append(
                Menu(
                    window=window, owner=owner, items=as_tuples(items), x=x, y=y,
                    width=menu_wide, highlighted=lit,
                )
            )  # fmt: skip
        desk.clipboard, desk.clock = data["clipboard"], data["clock"]
        desk.pointer = (data["pointer"][0], data["pointer"][1])
        desk.model = copy.deepcopy(data["model"])
        desk.popups = tuple(Popup(**popup) for popup in data["popups"])
        desk.action_count = data["action_count"]
        desk.capture = desk._at_path(data["capture"])
        desk.pressed_at = (data["pressed_at"][0], data["pressed_at"][1])
        desk.focus = desk._at_path(data["focus"])
        return desk

    def _path_of(self, widget: Widget | None) -> list[int] | None:
        """Return the index path of a widget: window, child, and so on."""

        def search(parents: list[Widget], path: list[int]) -> list[int] | None:
            for index, item in enumerate(parents):
                if item is widget:
                    return [*path, index]
                found = search(item.children, [*path, index])
                if found is not None:
                    return found
            return None

        return None if widget is None else search(list(self.windows), [])

    def _at_path(self, path: list[int] | None) -> Widget | None:
        if path is None:
            return None
        widget: Widget = self.windows[path[0]]
        for index in path[1:]:
            widget = widget.children[index]
        return widget


def placed(widget: Widget, x: int = 0, y: int = 0) -> Iterator[tuple[Widget, int, int]]:
    """Yield the widget and its descendants, hidden ones too, with their screen positions."""
    x, y = x + widget.x, y + widget.y
    yield widget, x, y
    inner_x, inner_y = widget.child_origin()
    for child in widget.children:
        yield from placed(child, x + inner_x, y + inner_y)
