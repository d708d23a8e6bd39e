"""The canonical action that every model family's reply is converted to."""

from dataclasses import dataclass, replace
from enum import StrEnum


class ActionKind(StrEnum):
    """Kind of action."""

    CLICK = "click"
    """Press and release `button`."""
    DOUBLE_CLICK = "double_click"
    """Two clicks of the left button."""
    TRIPLE_CLICK = "triple_click"
    """Three clicks of the left button."""
    MOVE = "move"
    """Move the cursor."""
    MOUSE_DOWN = "mouse_down"
    """Press `button` and hold it."""
    MOUSE_UP = "mouse_up"
    """Release `button`."""
    DRAG = "drag"
    """Press at the start, move along `path`, release at its end."""
    SCROLL = "scroll"
    """Scroll the wheel by `dx`, `dy` pixels."""
    TYPE = "type"
    """Type `text`; a line feed is Enter."""
    KEY = "key"
    """Press `keys` as a chord."""
    HOLD_KEY = "hold_key"
    """Hold `keys` for `seconds`."""
    WAIT = "wait"
    """Wait for `seconds`."""
    SCREENSHOT = "screenshot"
    """Take a screenshot and do nothing."""
    CURSOR_POSITION = "cursor_position"
    """Ask where the cursor is and do nothing."""
    ZOOM = "zoom"
    """Zoom into the rectangle from (x, y) to the first point of `path`."""
    TERMINATE = "terminate"
    """End the episode with `status`."""
    ANSWER = "answer"
    """End the episode with the answer `text`."""


class Button(StrEnum):
    """A mouse button."""

    LEFT = "left"
    """The primary button."""
    RIGHT = "right"
    """Opens context menus."""
    MIDDLE = "middle"
    """The wheel."""


class Status(StrEnum):
    """Outcome that an agent reports when it ends the task."""

    SUCCESS = "success"
    """The task is done."""
    FAILURE = "failure"
    """The task cannot be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action, in whole pixels of the environment's screen, (0, 0) at the top left."""

    kind: ActionKind
    x: int | None = None
    """None, with `y` None, for the cursor's position."""
    y: int | None = None
    path: tuple[tuple[int, int], ...] = ()
    """For a drag, the points after its start; for a zoom, the opposite corner."""
    button: Button = Button.LEFT
    dx: int = 0
    """Pixels; positive scrolls right."""
    dy: int = 0
    """Pixels; positive scrolls down. One wheel click is 120."""
    text: str = ""
    keys: tuple[str, ...] = ()
    """Canonical names: single lower-case characters, and "ctrl", "shift", "alt", "meta", "enter",
    "tab", "escape", "backspace", "delete", "insert", "space", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right", "f1" to "f12"."""
    seconds: float = 0.0
    status: Status = Status.SUCCESS
    is_relative: bool = False
    """For a move or a drag: whether `x`, `y` and `path` are relative to the cursor."""

    @property
    def is_end(self) -> bool:
        """Whether the action ends the episode."""
        return self.kind in (ActionKind.TERMINATE, ActionKind.ANSWER)

    def from_cursor(self, x: int, y: int) -> "Action":
        """Return the same action in screen pixels, for a cursor at (x, y)."""
        if not self.is_relative:
            return self
        return replace(
            self,
            x=None if self.x is None else x + self.x,
            y=None if self.y is None else y + self.y,
            path=tuple((x + across, y + down) for across, down in self.path),
            is_relative=False,
        )
