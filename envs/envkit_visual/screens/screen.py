"""A synthetic screen: widgets, themes, gestures and a hit test."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, Final, TypeVar

from envkit.marks import Mark
from envkit_visual.answers import at, spot_in
from envkit_visual.canvas import COLORS, SIDE, Canvas, Color, Look, Point
from envkit_visual.world import Outcome, Record, Staged

S = TypeVar("S")
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in units of the picture."""

_PLACES: Final = "where x and y are thousandths of the picture, from 0, 0 at the top left"
CLICKS: Final = f"click x, y, {_PLACES}"
DRAGS: Final = f"drag x, y to x, y, {_PLACES}"

_DRAG: Final = re.compile(r"drag\s+(.+?)\s+to\s+(.+)", re.IGNORECASE)
_SCROLL: Final = re.compile(r"scroll\s+(up|down)\s+(\d{1,2})", re.IGNORECASE | re.ASCII)
_DESKS: Final[tuple[Color, ...]] = ((186, 205, 214), (214, 202, 186), (60, 80, 96), (78, 66, 92))
_ACCENTS: Final = ("blue", "green", "purple", "red")
_WHITE: Final[Color] = (255, 255, 255)
_LINE: Final[Color] = (142, 145, 155)
_LIGHT: Final[tuple[Color, ...]] = ((248, 248, 250), _WHITE, (226, 228, 233))
"""Colours of windows, fields and buttons."""
_DARK: Final[tuple[Color, ...]] = ((48, 50, 58), (30, 31, 36), (74, 77, 88), (238, 238, 240))
"""The same, and that of text."""


class Kind(StrEnum):
    """What a widget looks like."""

    WINDOW = "window"
    PANEL = "panel"
    LABEL = "label"
    BUTTON = "button"
    FIELD = "field"
    CHECK = "check box"
    RADIO = "radio button"
    ITEM = "menu item"
    FILE = "file"
    FOLDER = "folder"
    TRACK = "track"
    HANDLE = "handle"
    BAR = "scroll bar"


class Widget(Record):
    """A part of the screen."""

    kind: Kind
    box: Box
    text: str = ""
    key: str = ""
    """What it is to the world; empty where a click has no effect."""
    is_on: bool = False
    """Whether it is checked, chosen, open or has the focus."""
    size: float = 13
    """Height of its text."""

    @property
    def center(self) -> Point:
        """Its center."""
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2

    @property
    def place(self) -> str:
        """Where it is, in words."""
        (left, _, right, _), y = self.box, self.center[1]
        is_track = self.kind is Kind.TRACK
        return f"from {at((left, y))} to {at((right, y))}" if is_track else f"at {at(self.center)}"


_INDENTS: Final = {Kind.FIELD: 7, Kind.ITEM: 6}
"""How far from its left edge the text of a widget starts."""


Verb = StrEnum("Verb", ["CLICK", "DRAG", "TYPE", "SCROLL"])
"""What a gesture does."""


class Gesture(Record):
    """What a person does with mouse and keyboard."""

    verb: Verb
    start: Point = (SIDE / 2, SIDE / 2)
    end: Point = (SIDE / 2, SIDE / 2)
    text: str = ""
    rows: int = 0
    """Rows to scroll, downwards."""

    @property
    def mark(self) -> Mark:
        """The gesture for viewers."""
        x, y = self.start
        details: dict[Verb, Mark] = {
            Verb.CLICK: {"x": x, "y": y},
            Verb.DRAG: {"path": [[x, y], list(self.end)]},
            Verb.TYPE: {"text": self.text},
            Verb.SCROLL: {"x": x, "y": y, "dx": 0, "dy": self.rows},
        }
        return {"kind": self.verb.value, **details[self.verb]}


def read_gesture(text: str) -> Gesture | None:
    """Return the gesture that a text is, such as "click 120, 500"; None if it is not one."""
    verb, _, rest = text.partition(" ")
    match verb.casefold():
        case Verb.CLICK if point := spot_in(rest):
            return Gesture(verb=Verb.CLICK, start=point)
        case Verb.TYPE if rest:
            return Gesture(verb=Verb.TYPE, text=rest)
        case Verb.DRAG if found := _DRAG.fullmatch(text):
            start, end = spot_in(found[1]), spot_in(found[2])
            return Gesture(verb=Verb.DRAG, start=start, end=end) if start and end else None
        case Verb.SCROLL if found := _SCROLL.fullmatch(text):
            rows = int(found[2]) * (1 if found[1].casefold() == "down" else -1)
            return Gesture(verb=Verb.SCROLL, rows=rows)
        case _:
            return None


def hit(widgets: Sequence[Widget], point: Point) -> Widget | None:
    """Return the topmost widget at a point, labels left out."""
    for widget in reversed(widgets):
        left, top, right, bottom = widget.box
        inside = left <= point[0] < right and top <= point[1] < bottom
        if inside and widget.kind is not Kind.LABEL:
            return widget
    return None


def label(x: float, y: float, text: str, size: float = 14) -> Widget:
    """Return a text that starts at a point."""
    right = min(SIDE, x + 0.65 * size * len(text))
    return Widget(kind=Kind.LABEL, box=(x, y - 8, right, y + 8), text=text, size=size)


def window(left: float, top: float, wide: float, high: float, title: str) -> Widget:
    """Return a window."""
    return Widget(kind=Kind.WINDOW, box=(left, top, left + wide, top + high), text=title)


def button(box: Box, text: str, key: str, *, is_on: bool = False, size: float = 13) -> Widget:
    """Return a button."""
    return Widget(kind=Kind.BUTTON, box=box, text=text, key=key, is_on=is_on, size=size)


def card(
    left: float, top: float, wide: float, title: str, lines: Sequence[str], size: float = 14
) -> list[Widget]:
    """Return a window with lines of text."""
    rows = (label(left + 12, top + 38 + 26 * row, text, size) for row, text in enumerate(lines))
    return [window(left, top, wide, 34 + 26 * len(lines), title), *rows]


class Screen(Staged[S]):
    """A world whose picture is a screen. Its layout is a function of its state."""

    actions = CLICKS
    verbs: ClassVar[tuple[Verb, ...]] = (Verb.CLICK,)
    """What one can do."""
    missed: ClassVar[str] = "Nothing happens there."
    """Feedback where no widget answers a gesture."""
    options = tuple(f"click {x}, {y}" for y in range(90, 1000, 90) for x in range(80, 1000, 120))

    @abstractmethod
    def widgets(self, state: S) -> list[Widget]:
        """Return all widgets, the topmost last."""

    def spots(self, state: S) -> dict[str, str]:
        """Return by their keys where widgets are, as actions write it."""
        return {one.key: at(one.center) for one in self.widgets(state)}

    def use(self, state: S, widget: Widget, gesture: Gesture) -> tuple[S, str]:
        """Return the state after a gesture that starts on a widget with a key, and feedback."""
        return state, self.missed

    def do(self, state: S, gesture: Gesture) -> tuple[S, str]:
        """Return the state after a gesture, and feedback."""
        found = hit(self.widgets(state), gesture.start)
        return self.use(state, found, gesture) if found and found.key else (state, self.missed)

    def act(self, state: S, action: str) -> Outcome[S]:
        """Read a gesture and apply it."""
        gesture = read_gesture(action)
        if gesture is None or gesture.verb not in self.verbs:
            return Outcome(state=state, error=f"an action is {self.actions}")
        after, text = self.do(state, gesture)
        return Outcome(state=after, text=text, mark=gesture.mark)

    def draw(self, state: S, canvas: Canvas, look: Look) -> None:
        """Draw the widgets in the look's theme."""
        brush = Brush(canvas, look)
        for widget in self.widgets(state):
            brush.draw(widget)

    def tell(self, state: S) -> str:
        """List the widgets and where they are."""
        return "\n".join(
            f"{widget.kind} {widget.text!r} {widget.place}" + ", on" * widget.is_on
            for widget in self.widgets(state)
            if widget.kind is not Kind.PANEL
        )


class Brush:
    """Draws widgets in a theme."""

    def __init__(self, canvas: Canvas, look: Look) -> None:
        """Choose a theme and fill the background."""
        rng = look.rng("theme")
        colors = _DARK if rng.random() < 0.35 else (*_LIGHT, look.ink)
        self._canvas = canvas
        self._window, self._field, button, self._text = colors
        self._accent = COLORS[rng.choice(_ACCENTS)]
        edge = rng.choice((_LINE, self._text))
        canvas.box(0, 0, SIDE, SIDE, fill=rng.choice(_DESKS))
        self._boxes: dict[Kind, tuple[Color, Color | None, float]] = {
            **dict.fromkeys((Kind.WINDOW, Kind.PANEL), (self._window, _LINE, 0)),
            Kind.BUTTON: (button, edge, 0),
            Kind.FIELD: (self._field, edge, 0),
            Kind.HANDLE: (self._accent, self._text, 4),
            **dict.fromkeys((Kind.TRACK, Kind.BAR), (_LINE, None, 2)),
        }
        """Filling, line and radius of the corners."""

    def draw(self, widget: Widget) -> None:
        """Draw a widget."""
        left, top, right, _ = widget.box
        x, middle = widget.center
        if widget.kind in self._boxes:
            fill, line, round_by = self._boxes[widget.kind]
            is_lit = widget.is_on and widget.kind in (Kind.BUTTON, Kind.FIELD)
            line, width = (self._accent, 3) if is_lit else (line, 1.5)
            self._canvas.box(*widget.box, fill=fill, line=line, width=width, round_by=round_by)
        color, align = self._text, "lm"
        match widget.kind:
            case Kind.WINDOW:
                self._canvas.box(left, top, right, top + 22, fill=self._accent)
                for step in range(3):
                    self._canvas.disc(right - 12 - 14 * step, top + 11, 4, fill=_WHITE)
                x, middle, color = left + 8, top + 11, _WHITE
            case Kind.BUTTON:
                align = "mm"
            case Kind.CHECK | Kind.RADIO:
                self._draw_choice(widget)
                x = left + 19
            case Kind.ITEM if widget.is_on:
                self._canvas.box(*widget.box, fill=self._accent)
                x, color = left + 6, _WHITE
            case Kind.FILE | Kind.FOLDER:
                self._draw_icon(widget)
                middle, align = top + 41, "mm"
            case _:
                x = left + _INDENTS.get(widget.kind, 0)
        if widget.text:
            self._canvas.text(x, middle, widget.text, color=color, size=widget.size, at=align)

    def _draw_choice(self, widget: Widget) -> None:
        left, middle = widget.box[0], widget.center[1]
        if widget.kind is Kind.RADIO:
            self._canvas.disc(left + 7, middle, 7, fill=self._field, line=self._text, width=1.5)
            if widget.is_on:
                self._canvas.disc(left + 7, middle, 4, fill=self._text)
        else:
            corners = (left, middle - 7, left + 14, middle + 7)
            self._canvas.box(*corners, fill=self._field, line=self._text, width=1.5)
            if widget.is_on:
                tick = ((left + 3, middle), (left + 6, middle + 4), (left + 11, middle - 4))
                self._canvas.path(tick, color=self._text, width=3)

    def _draw_icon(self, widget: Widget) -> None:
        x, top = widget.center[0], widget.box[1]
        line: Color = (40, 40, 48)
        if widget.kind is Kind.FILE:
            page = ((x - 12, top), (x + 5, top), (x + 12, top + 7), (x + 12, top + 30))
            self._canvas.polygon((*page, (x - 12, top + 30)), fill=_WHITE, line=line, width=1.5)
            for row in (12, 18, 24):
                self._canvas.path(((x - 7, top + row), (x + 7, top + row)), color=_LINE)
        else:
            for box in ((x - 17, top + 3, x - 2, top + 10), (x - 17, top + 7, x + 17, top + 30)):
                self._canvas.box(*box, fill=COLORS["yellow"], line=line, width=1.5)
        plate = (widget.box[0] + 2, top + 33, widget.box[2] - 2, top + 50)
        self._canvas.box(*plate, fill=self._window)
