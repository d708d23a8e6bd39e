"""The canonical JSON form: one object, or a list of them, with the keys of `Action`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit_computer_use.actions.action import Action, ActionKind, Button, Status

_LONGEST_REPLY: Final = 200_000
_LONGEST_TEXT: Final = 10_000
_MOST_ACTIONS: Final = 32
_MOST_POINTS: Final = 256
_MOST_TRIES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedActions:
    """What a reply asks for."""

    actions: tuple[Action, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read, a sentence each. Empty: all was."""
    warnings: tuple[str, ...] = ()
    """What was read but is hardly meant."""
    out_of_range: int = 0
    """Coordinates that were moved into the screen."""


class _Refused(Exception):
    """An object that is no action; the message says why."""


def parse(reply: str, *, width: int, height: int) -> ParsedActions:
    """Read the last JSON object or list of a reply as actions; never raises."""
    if len(reply) > _LONGEST_REPLY:
        return _problem(f"the reply is longer than {_LONGEST_REPLY} characters")
    data = _last_json(reply)
    if data is None:
        return _problem("the reply holds no JSON action")
    items = cast("list[object]", data if isinstance(data, list) else [data])
    if not 1 <= len(items) <= _MOST_ACTIONS:
        return _problem(f"a list must hold 1 to {_MOST_ACTIONS} actions")
    reader = _Reader(width, height)
    try:
        actions = tuple(reader.action(item) for item in items)
    except _Refused as reason:
        return _problem(str(reason))
    outside = reader.out_of_range
    warnings = ("a point lay outside of the screen and was moved to its edge",) * bool(outside)
    return ParsedActions(actions=actions, warnings=warnings, out_of_range=outside)


def _problem(sentence: str) -> ParsedActions:
    return ParsedActions(problems=(sentence,))


def write(actions: Sequence[Action]) -> str:
    """Return the JSON of one action, or of several as a list."""
    written = [_to_json(action) for action in actions]
    return json.dumps(written[0] if len(written) == 1 else written)


def _last_json(reply: str) -> object:
    decoder, found, at = json.JSONDecoder(), None, 0
    for _ in range(_MOST_TRIES):
        starts = [place for place in (reply.find("{", at), reply.find("[", at)) if place >= 0]
        if not starts:
            break
        at = min(starts)
        try:
            found, at = decoder.raw_decode(reply, at)
        except (ValueError, RecursionError):
            at += 1
    return found


class _Reader:
    def __init__(self, width: int, height: int) -> None:
        self._size = (width, height)
        self.out_of_range = 0

    def action(self, item: object) -> Action:
        if not isinstance(item, Mapping):
            raise _Refused("an action must be a JSON object")
        data = cast("Mapping[str, Any]", item)
        try:
            kind = ActionKind(data.get("action", ""))
            button = Button(data.get("button", "left"))
            status = Status(data.get("status", "success"))
        except (ValueError, TypeError):
            raise _Refused("the action, its button or its status has an unknown name") from None
        x, y = self._place(data)
        path = self._path(data)
        if kind is ActionKind.DRAG and not path:
            raise _Refused("a drag needs 'to' or 'path'")
        keys = _texts(data.get("keys", ()))
        if kind in (ActionKind.KEY, ActionKind.HOLD_KEY) and not keys:
            raise _Refused("a key action needs 'keys', a list of names")
        text = data.get("text", "")
        if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
            raise _Refused(f"'text' must be a string of at most {_LONGEST_TEXT} characters")
        return Action(
            kind=kind,
            x=x,
            y=y,
            path=path,
            button=button,
            dx=round(_number(data.get("dx", 0), 10_000)),
            dy=round(_number(data.get("dy", 0), 10_000)),
            text=text,
            keys=keys,
            seconds=max(0.0, _number(data.get("seconds", 0), 60)),
            status=status,
        )

    def _place(self, data: Mapping[str, Any]) -> tuple[int | None, int | None]:
        if data.get("x") is None and data.get("y") is None:
            return None, None
        return self._point([data.get("x"), data.get("y")])

    def _path(self, data: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        points: object = [data["to"]] if "to" in data else data.get("path", [])
        if not isinstance(points, list) or len(cast("list[object]", points)) > _MOST_POINTS:
            raise _Refused(f"'path' must be a list of at most {_MOST_POINTS} points [x, y]")
        return tuple(self._point(point) for point in cast("list[object]", points))

    def _point(self, point: object) -> tuple[int, int]:
        if not isinstance(point, list) or len(cast("list[object]", point)) != 2:
            raise _Refused("a point must be [x, y]")
        inside: list[int] = []
        for value, size in zip(cast("list[object]", point), self._size, strict=True):
            number = math.floor(_number(value, 1e9))
            self.out_of_range += not 0 <= number < size
            inside.append(max(0, min(size - 1, number)))
        return inside[0], inside[1]


def _number(value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > most:
        raise _Refused(f"a number must be within -{most:g} to {most:g}")
    if not math.isfinite(value):
        raise _Refused("a number must be finite")
    return value


def _texts(value: object) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    if len(items) > 8 or not all(isinstance(item, str) and 0 < len(item) <= 16 for item in items):
        raise _Refused("'keys' must be a list of at most 8 names of keys")
    return tuple(str(item).lower() for item in items)


def _to_json(action: Action) -> dict[str, Any]:
    data: dict[str, Any] = {"action": action.kind.value}
    if action.x is not None:
        data |= {"x": action.x, "y": action.y}
    if action.path:
        data["path"] = [list(point) for point in action.path]
    for name in ("dx", "dy", "text", "seconds"):
        if getattr(action, name):
            data[name] = getattr(action, name)
    if action.keys:
        data["keys"] = list(action.keys)
    if action.button is not Button.LEFT:
        data["button"] = action.button.value
    if action.kind is ActionKind.TERMINATE:
        data["status"] = action.status.value
    return data
