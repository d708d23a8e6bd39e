"""Gemini's computer use: the functions of Gemini 2.5 and 3, and those of Gemini 3.5.

After the computer-use guide at ai.google.dev and google-gemini/computer-use-preview, agent.py.
Places and the magnitude of a scroll are thousandths of the screen. Each function is a tool of its
own. `intent` and `safety_decision` may come with every call and change nothing. A reply without a
call ends the episode. What needs an address bar is rejected with a reason, and so are keys that
stay down between calls.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from envkit.tools import ToolSpec
from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.call_reply import CallFamily, write_calls
from envkit_actions.family import Part
from envkit_actions.fields import DIRECTIONS, Fields, Reader
from envkit_actions.keys import KeyColumn
from envkit_actions.malformed import MalformedActionError
from envkit_actions.parsed import Reading
from envkit_actions.reply import Call
from envkit_actions.spaces import CoordinateSpace, SpaceKind
from envkit_actions.writing import Writing, direction_pixels, replaced, replacing

_PROMPT: Final = (
    "You operate a screen through function calls, and get a screenshot after each reply. "
    "Places count from the top left, up to {width} across and {height} down. "
    "When the task is done, reply {done} without a call; when it cannot be done, {fail}; when a "
    "question was asked, reply with the answer alone."
)
LONG_WAIT_SECONDS: Final = 5.0
"""How long `wait_5_seconds` lasts."""
_WHOLE: Final = 1000
"""Thousandths of a whole screen."""
_LARGEST: Final = 999
_MAGNITUDE: Final = 800
"""How far a scroll goes that does not say."""
_ENTER: Final = Action(kind=ActionKind.KEY, keys=("enter",))
_ASIDE: Final = ("intent", "safety_decision")

Written = tuple[str, dict[str, Any]]
"""A function's name and its arguments."""


class Function(NamedTuple):
    """One function: its parameters, and how a call is read."""

    needed: tuple[str, ...]
    optional: tuple[str, ...]
    read: Reader


class GeminiFamily(CallFamily):
    """The functions of one generation."""

    prompt = _PROMPT

    def __init__(
        self,
        name: str,
        functions: Mapping[str, Function],
        aimed: Mapping[str, tuple[ActionKind, Button]],
        refused: Mapping[str, str],
        *,
        wait_seconds: float | None = None,
    ) -> None:
        """Set the functions.

        Args:
            name: The family's key in `FAMILIES`.
            functions: Every function by its name.
            aimed: Those that only take a place, and what each does there.
            refused: Names of others that the models know, and why they are not carried out.
            wait_seconds: How long every wait lasts; None if a wait says how long.
        """
        super().__init__(name, counts=SpaceKind.NORMALISED)
        self.wait_seconds = wait_seconds
        self._functions, self._refused = functions, refused
        self._aimed = {done: word for word, done in aimed.items()}
        self.tool_names = (*functions, *refused)
        self._tools = tuple(_tool(*entry) for entry in functions.items())

    def _read(self, call: Call, reading: Reading) -> None:
        name, arguments = call
        if name is None and arguments.keys() <= {"id", "name"}:  # empty `args` may be left out
            name, arguments = str(arguments.get("name")), dict[str, Any]()
        if name is not None and name in self._refused:
            raise MalformedActionError(f"{name}: {self._refused[name]}")
        if name is None or name not in self._functions:
            raise MalformedActionError(
                "a call must have the 'name' of a function and its 'args'; the functions are "
                f"{', '.join(self._functions)}"
            )
        fields = Fields(arguments, reading, name)
        for aside in _ASIDE:
            fields.has(aside)
        fields.read(self._functions[name].read)

    def _write_next(
        self, actions: Sequence[Action], space: CoordinateSpace
    ) -> tuple[Sequence[Written], int]:
        writing = Writing(self.name, actions[0], space)
        typed = _typed_at(writing, actions) if "type_text_at" in self._functions else None
        call, count = typed or (self._call(writing), 1)
        return [call], count

    def _write(self, writing: Writing) -> list[Written]:
        return [self._call(writing)]

    def _joined(self, parts: Sequence[Part]) -> str:
        return write_calls(parts)

    def _call(self, writing: Writing) -> Written:
        action = writing.plain(button=True, keys=writing.action.kind is ActionKind.KEY)
        aimed = self._aimed.get((action.kind, action.button))
        match action.kind:
            case _ if aimed is not None:
                return aimed, _point(writing)
            case ActionKind.SCROLL:
                return "scroll" if "scroll" in self._functions else "scroll_at", _wheel(writing)
            case ActionKind.DRAG:
                writing.plain()
                x, y = writing.end()
                end = {"destination_x": x, "destination_y": y}
                return "drag_and_drop", {**_point(writing), **end}
            case ActionKind.KEY if "key_combination" in self._functions:
                return "key_combination", {"keys": writing.joined_keys(KeyColumn.PLAYWRIGHT)}
            case ActionKind.KEY:
                keys = writing.keys(KeyColumn.PLAYWRIGHT)
                return ("hotkey", {"keys": keys}) if keys[1:] else ("press_key", {"key": keys[0]})
            case ActionKind.WAIT if self.wait_seconds is not None:
                writing.seconds(self.wait_seconds)
                return "wait_5_seconds", {}
            case ActionKind.WAIT:
                return "wait", {"seconds": action.seconds}
            case ActionKind.TYPE if "type" in self._functions:
                return "type", {"text": action.text}
            case ActionKind.SCREENSHOT if "take_screenshot" in self._functions:
                return "take_screenshot", {}
            case _:
                raise writing.refusal(f"its functions are {', '.join(self._functions)}")

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return one tool per function."""
        return self._tools


def _tool(name: str, function: Function) -> ToolSpec:
    properties = {key: _PARAMETERS[key] for key in (*function.needed, *function.optional)}
    return ToolSpec(
        name=name,
        description=f"{name.replace('_', ' ').capitalize()}.",
        parameters={
            "type": "object",
            "properties": properties,
            "required": list(function.needed),
        },
    )


_PLACE: Final = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    **dict.fromkeys(("x", "y", "destination_x", "destination_y"), _PLACE),
    "magnitude": {**_PLACE, "description": "How far, in thousandths of the screen."},
    "direction": {"type": "string", "enum": list(DIRECTIONS)},
    "text": {"type": "string"},
    "press_enter": {"type": "boolean"},
    "clear_before_typing": {"type": "boolean"},
    "keys": {"description": "Pressed together: a string such as Control+A, or a list."},
    "key": {"type": "string", "description": "Such as Enter."},
    "seconds": {"type": "number"},
}


def _aimed(words: Mapping[str, tuple[ActionKind, Button]]) -> dict[str, Function]:
    """Return the functions that only take a place."""

    def at(kind: ActionKind, button: Button) -> Function:
        def read(fields: Fields) -> Action:
            x, y = fields.point()
            return Action(kind=kind, x=x, y=y, button=button)

        return Function(("x", "y"), (), read)

    return {word: at(*done) for word, done in words.items()}


def _plain(*actions: Action) -> Function:
    def read(fields: Fields) -> Sequence[Action]:
        return actions

    return Function((), (), read)


def _drag(fields: Fields) -> Action:
    x, y = fields.point()
    end = fields.place((fields.number("destination_x"), fields.number("destination_y")))
    return Action(kind=ActionKind.DRAG, x=x, y=y, path=(end,))


def _scroll(fields: Fields) -> Action:
    far = fields.number("magnitude", _MAGNITUDE)
    if not 0 <= far <= _WHOLE:
        raise MalformedActionError(f"'magnitude' must be 0 to {_WHOLE}, got {far:.10g}")
    return _scrolled(fields, fields.point(), far)


def _scroll_document(fields: Fields) -> Action:
    return _scrolled(fields, fields.place((_WHOLE / 2, _WHOLE / 2)), _MAGNITUDE)


def _scrolled(fields: Fields, place: tuple[int, int], far: float) -> Action:
    direction = fields.direction("direction")
    fields.is_relative = True
    across, down = fields.place((far, far))
    dx, dy = direction_pixels(direction, across if direction in ("left", "right") else down)
    return Action(kind=ActionKind.SCROLL, x=place[0], y=place[1], dx=dx, dy=dy)


def _type(fields: Fields) -> list[Action]:
    typed = Action(kind=ActionKind.TYPE, text=fields.text("text"))
    return [typed, _ENTER] if fields.flag("press_enter", default=False) else [typed]


def _type_at(fields: Fields) -> list[Action]:
    x, y = fields.point()
    text = fields.text("text")
    is_whole = fields.flag("clear_before_typing", default=True)
    typed = replacing(text) if is_whole else [Action(kind=ActionKind.TYPE, text=text)]
    enter = [_ENTER] if fields.flag("press_enter", default=True) else []
    return [Action(kind=ActionKind.CLICK, x=x, y=y), *typed, *enter]


def _keys(key: str) -> Function:
    def read(fields: Fields) -> Action:
        return Action(kind=ActionKind.KEY, keys=fields.keys(key))

    return Function((key,), (), read)


def _wait(fields: Fields) -> Action:
    return Action(kind=ActionKind.WAIT, seconds=fields.seconds("seconds", 1.0))


_HISTORY: Final = {
    "go_back": _plain(Action(kind=ActionKind.KEY, keys=("alt", "left"))),
    "go_forward": _plain(Action(kind=ActionKind.KEY, keys=("alt", "right"))),
}
_DRAG: Final = Function(("x", "y", "destination_x", "destination_y"), (), _drag)
_SCROLL: Final = Function(("x", "y", "direction"), ("magnitude",), _scroll)
_LOOK: Final = _plain(Action(kind=ActionKind.SCREENSHOT))
_OLD_AIMED: Final = {
    "click_at": (ActionKind.CLICK, Button.LEFT),
    "hover_at": (ActionKind.MOVE, Button.LEFT),
}
_NEW_AIMED: Final = {
    "click": (ActionKind.CLICK, Button.LEFT),
    "right_click": (ActionKind.CLICK, Button.RIGHT),
    "middle_click": (ActionKind.CLICK, Button.MIDDLE),
    "double_click": (ActionKind.DOUBLE_CLICK, Button.LEFT),
    "triple_click": (ActionKind.TRIPLE_CLICK, Button.LEFT),
    "move": (ActionKind.MOVE, Button.LEFT),
    "mouse_down": (ActionKind.MOUSE_DOWN, Button.LEFT),
    "mouse_up": (ActionKind.MOUSE_UP, Button.LEFT),
}
_OLD: Final[dict[str, Function]] = {
    "open_web_browser": _LOOK,  # which is open already
    **_aimed(_OLD_AIMED),
    "type_text_at": Function(("x", "y", "text"), ("press_enter", "clear_before_typing"), _type_at),
    "scroll_document": Function(("direction",), (), _scroll_document),
    "scroll_at": _SCROLL,
    "wait_5_seconds": _plain(Action(kind=ActionKind.WAIT, seconds=LONG_WAIT_SECONDS)),
    "key_combination": _keys("keys"),
    "drag_and_drop": _DRAG,
    **_HISTORY,
}
_NEW: Final[dict[str, Function]] = {
    **_aimed(_NEW_AIMED),
    "type": Function(("text",), ("press_enter",), _type),
    "drag_and_drop": _DRAG,
    "scroll": _SCROLL,
    "wait": Function((), ("seconds",), _wait),
    "press_key": _keys("key"),
    "hotkey": _keys("keys"),
    "take_screenshot": _LOOK,
    **_HISTORY,
}
_ADDRESS: Final[dict[str, str]] = dict.fromkeys(
    ("navigate", "search"), "there is no address bar: what the task needs is on the screen"
)
_HELD: Final[dict[str, str]] = dict.fromkeys(
    ("key_down", "key_up"), "no key stays down between calls: press keys together with hotkey"
)


def _point(writing: Writing) -> dict[str, Any]:
    x, y = writing.point()
    return {"x": x, "y": y}


def _wheel(writing: Writing) -> dict[str, Any]:
    writing.plain()
    direction, pixels = writing.one_axis()
    size = writing.space.screen[0 if direction in ("left", "right") else 1]
    far = round(pixels * _WHOLE / size)
    if far > _LARGEST or round(far * size / _WHOLE) != pixels:
        raise writing.refusal(f"it goes thousandths of the screen, got {pixels} of {size} pixels")
    return {**_point(writing), "direction": direction, "magnitude": far}


def _typed_at(writing: Writing, actions: Sequence[Action]) -> tuple[Written, int] | None:
    """Return the call for a click into a field and what is typed there, and how many they are."""
    first = actions[0]
    if first.kind is not ActionKind.CLICK or first.button is not Button.LEFT or first.keys:
        return None
    text, count = replaced(actions[1:]), 3
    is_whole = text is not None
    if text is None:
        if len(actions) < 2 or actions[1].kind is not ActionKind.TYPE:
            return None
        text, count = actions[1].text, 2
    enters = list(actions[count : count + 1]) == [_ENTER]
    options = {"text": text, "press_enter": enters, "clear_before_typing": is_whole}
    return ("type_text_at", {**_point(writing), **options}), count + enters


GEMINI_25: Final = GeminiFamily(
    "gemini-2.5", _OLD, _OLD_AIMED, _ADDRESS, wait_seconds=LONG_WAIT_SECONDS
)
GEMINI_35: Final = GeminiFamily("gemini-3.5", _NEW, _NEW_AIMED, {**_ADDRESS, **_HELD})
