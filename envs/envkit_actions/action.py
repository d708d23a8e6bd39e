"""The canonical action: what every model family's reply is turned into."""

from dataclasses import dataclass, replace
from enum import StrEnum


class ActionKind(StrEnum):
    """What is done."""

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
    """Turn the wheel by `dx`, `dy` pixels."""
    TYPE = "type"
    """Write `text`; a line feed is Enter."""
    KEY = "key"
    """Press `keys` together and release them."""
    HOLD_KEY = "hold_key"
    """Hold `keys` for `seconds`."""
    WAIT = "wait"
    """Let `seconds` pass."""
    SCREENSHOT = "screenshot"
    """Only look."""
    ZOOM = "zoom"
    """Look at the rectangle from (x, y) to the first point of `path`, enlarged."""
    TERMINATE = "terminate"
    """End the episode with `status`."""
    ANSWER = "answer"
    """End the episode with the answer `text`."""


class Button(StrEnum):
    """A mouse button."""

    LEFT = "left"
    """The usual one."""
    RIGHT = "right"
    """Opens context menus."""
    MIDDLE = "middle"
    """The wheel."""


class Status(StrEnum):
    """How an agent says that the task ended."""

    SUCCESS = "success"
    """It is done."""
    FAILURE = "failure"
    """It cannot be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action, in whole pixels of the environment's screen, (0, 0) at the top left."""

    kind: ActionKind
    x: int | None = None
    """None with `y` None: where the cursor is."""
    y: int | None = None
    path: tuple[tuple[int, int], ...] = ()
    """Of a drag, the points after its start; of a zoom, the opposite corner."""
    button: Button = Button.LEFT
    dx: int = 0
    """Pixels; positive shows what is further right."""
    dy: int = 0
    """Pixels; positive shows what is further down. One click of a wheel is 120."""
    text: str = ""
    keys: tuple[str, ...] = ()
    """Canonical names: single lower-case characters, and "ctrl", "shift", "alt", "meta", "enter",
    "tab", "escape", "backspace", "delete", "insert", "space", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right", "f1" to "f12"."""
    seconds: float = 0.0
    status: Status = Status.SUCCESS
    is_relative: bool = False
    """Of a move or a drag: whether `x`, `y` and `path` count from the cursor."""

    def from_cursor(self, x: int, y: int) -> "Action":
        """Return the same action in pixels of the screen, for a cursor at (x, y)."""
        if not self.is_relative:
            return self
        return replace(
            self,
            x=None if self.x is None else x + self.x,
            y=None if self.y is None else y + self.y,
            path=tuple((x + across, y + down) for across, down in self.path),
            is_relative=False,
        )
