"""Marks: the actions of a reply as data in `info["marks"]`, validated and described.

An environment knows what a reply meant, so viewers need not parse it again. Each mark is one
action, a JSON object with a `kind`, in execution order:

==============================================  ==============================================
kind                                            keys
==============================================  ==============================================
click, double_click, triple_click, move,        x, y; button, keys
mouse_down, mouse_up
drag                                            path: [[x, y], ...]; button
scroll                                          x, y, dx, dy
type                                            text; x, y of the field
key                                             keys
box                                             box: [left, top, right, bottom], label
answer, terminate, wait, call                   text, status, seconds, label
==============================================  ==============================================

Coordinates are pixels of the image that the model saw before the reply, origin at the top left.
Every mark may have `image` (index into all images of the episode, from 0; by default the last one
seen), `ok: false` with a `note` (no effect, outside, refused), and `agent`. Kinds that are
not in the table are allowed, with any of these keys; viewers show them as text.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, shown

Mark = dict[str, Any]
"""One action, as JSON data."""

MAX_MARKS: Final = 64
"""Maximum marks per turn."""
MAX_TEXT_BYTES: Final = 4096
"""Maximum UTF-8 bytes of text in one mark, over all its strings."""
_SHOWN_CHARACTERS: Final = 80

_POINTED: Final = ("click", "double_click", "triple_click", "move", "mouse_down", "mouse_up")
REQUIRED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(_POINTED, ("x", "y")),
        "drag": ("path",),
        "scroll": ("x", "y", "dx", "dy"),
        "type": ("text",),
        "key": ("keys",),
        "box": ("box",),
        "answer": ("text",),
        "terminate": ("status",),
        "wait": ("seconds",),
        "call": ("label",),
    }
)
"""Kind -> the keys it must have."""


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of a float
        return False


def _is_list(value: object, length: int | None = None) -> bool:
    return isinstance(value, list) and length in (None, len(cast(list[object], value)))


def _is_point(value: object) -> bool:
    return _is_list(value, 2) and all(map(_is_number, cast(list[object], value)))


def _is_path(value: object) -> bool:
    return _is_list(value) and bool(value) and all(map(_is_point, cast(list[object], value)))


def _is_box(value: object) -> bool:
    if not _is_list(value, 4) or not all(map(_is_number, cast(list[object], value))):
        return False
    left, top, right, bottom = cast(list[float], value)
    return left <= right and top <= bottom


def _is_keys(value: object) -> bool:
    return _is_list(value) and all(isinstance(key, str) for key in cast(list[object], value))


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_duration(value: object) -> bool:
    return _is_number(value) and cast(float, value) >= 0


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_Rule = tuple[Callable[[object], bool], str]
_PIXELS: Final[_Rule] = (_is_number, "a finite number of pixels")
_TEXT: Final[_Rule] = (_is_text, "a string")
_VALUES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {
        **dict.fromkeys(("x", "y", "dx", "dy"), _PIXELS),
        **dict.fromkeys(("text", "label", "status", "button", "note", "agent"), _TEXT),
        "seconds": (_is_duration, "a number of seconds, at least 0"),
        "path": (_is_path, "a list of points [x, y], at least one"),
        "box": (_is_box, "[left, top, right, bottom] with left <= right and top <= bottom"),
        "keys": (_is_keys, "a list of key names"),
        "image": (_is_index, "an index into the episode's images, from 0"),
        "ok": (_is_flag, "true or false"),
    }
)


def mark_problems(marks: object) -> Iterator[str]:
    """Yield the problems of a value of `info["marks"]`; nothing if it is valid.

    Args:
        marks: Any value; a list of marks is valid.
    """
    if not isinstance(marks, list):
        yield f"info['marks'] must be a list of marks, got {shown(marks)}"
        return
    given = cast(list[object], marks)
    if len(given) > MAX_MARKS:
        yield (
            f"info['marks'] can hold at most {MAX_MARKS} marks per turn, got {len(given)}; "
            "omit the rest"
        )
    for number, mark in enumerate(islice(given, MAX_MARKS)):
        yield from (f"info['marks'][{number}]{problem}" for problem in _problems(mark))


def _problems(mark: object) -> Iterator[str]:
    if not isinstance(mark, dict):
        yield f" must be a dict with a 'kind', got {shown(mark)}"
        return
    fields = cast(dict[str, object], mark)
    kind = fields.get("kind")
    if not isinstance(kind, str) or not kind:
        yield f" must name its 'kind', such as 'click', got {shown(kind)}"
        return
    missing = [key for key in REQUIRED.get(kind, ()) if key not in fields]
    if missing:
        yield f" of kind {kind!r} must have the keys {missing}, got {sorted(map(str, fields))}"
    if ("x" in fields) != ("y" in fields):
        yield " must have 'x' and 'y', or neither"
    for key, (is_right, rule) in _VALUES.items():
        if key in fields and not is_right(fields[key]):
            yield f"[{key!r}] must be {rule}, got {shown(fields[key])}"
    if "note" in fields and fields.get("ok") is not False:
        yield " must have 'ok': false if it has a 'note', got no such 'ok'"
    size = sum(len(text.encode("utf-8", "replace")) for text in _texts(fields))
    if size > MAX_TEXT_BYTES:
        yield (
            f" can hold at most {MAX_TEXT_BYTES} bytes of text, got {size}; "
            "shorten it with envkit.marks.clip"
        )


def _texts(mark: dict[str, object]) -> Iterator[str]:
    """Yield every string of a mark, whose data may be very deep or cyclic."""
    waiting: list[object] = [mark]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list) and id(cast(object, value)) not in seen:
            seen.add(id(cast(object, value)))
            parts = cast("dict[str, object] | list[object]", value)
            waiting += parts.values() if isinstance(parts, dict) else parts


def clip(text: str, most: int = MAX_TEXT_BYTES // 2) -> str:
    """Return a text short enough for a mark; a truncated one ends with "...".

    Args:
        text: Any text.
        most: Maximum UTF-8 bytes; the default leaves room for the mark's other texts.
    """
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[: most - 3].decode("utf-8", "ignore") + "..."


def scale_marks(
    marks: Sequence[Mapping[str, Any]], across: float, down: float | None = None
) -> list[Mark]:
    """Scale marks to another image size, for wrappers that resize images.

    Args:
        marks: Marks in pixels of the image before resizing. They are not modified.
        across: New width divided by old width.
        down: New height divided by old height; None uses `across`.

    Raises:
        ConfigurationError: A factor is not a positive number.
    """
    down = across if down is None else down
    if not all(_is_number(factor) and factor > 0 for factor in (across, down)):
        raise ConfigurationError(
            f"the factors of scale_marks must be finite and above 0, got {across!r} and {down!r}"
        )
    return [_scaled(mark, across, down) for mark in marks]


def _scaled(mark: Mapping[str, Any], across: float, down: float) -> Mark:
    changed = dict(mark)
    for key, factor in (("x", across), ("y", down), ("dx", across), ("dy", down)):
        if key in changed:
            changed[key] = _times(changed[key], factor)
    if "path" in changed:
        changed["path"] = [[_times(x, across), _times(y, down)] for x, y in changed["path"]]
    if "box" in changed:
        left, top, right, bottom = changed["box"]
        changed["box"] = [
            *(_times(left, across), _times(top, down)),
            *(_times(right, across), _times(bottom, down)),
        ]
    return changed


def _times(value: float, factor: float) -> float:
    """Scale and round to hundredths of a pixel; a whole number becomes an int."""
    product = round(value * factor, 2)
    return int(product) if product == int(product) else product


def words(mark: Mapping[str, Any]) -> str:
    """Describe an action on one line, such as "click 409, 257".

    Args:
        mark: A valid mark of any kind.
    """
    said = " ".join(_said(mark).split())
    if mark.get("agent"):
        said = f"{mark['agent']}: {said}"
    if mark.get("ok", True):
        return said
    return f"{said} ({mark.get('note') or 'no effect'})"


def actions_in(info: Mapping[str, Any]) -> list[str]:
    """Describe the actions of a turn, from recorded info of any origin; never raises.

    Args:
        info: Info of a step. Invalid marks are described as unreadable, and those beyond
            `MAX_MARKS` are counted.
    """
    marks = info.get("marks")
    if not isinstance(marks, list):
        return []
    given = cast(list[Any], marks)
    said = [
        "unreadable mark" if any(_problems(mark)) else words(mark) for mark in given[:MAX_MARKS]
    ]
    rest = len(given) - MAX_MARKS
    return [*said, f"{rest} more"] if rest > 0 else said


def _said(mark: Mapping[str, Any]) -> str:
    said = _SAID.get(str(mark["kind"]), _pointed)(mark)
    button = mark.get("button", "left")
    keys = "+".join(mark.get("keys", ())) if mark["kind"] != "key" else ""
    return ("" if button == "left" else f"{button} ") + said + (f" with {keys}" if keys else "")


def _pointed(mark: Mapping[str, Any]) -> str:
    """Describe a mark by its kind's name: a click, or a kind that is not in the table."""
    parts = [str(mark["kind"]).replace("_", " "), mark.get("label")]
    parts += [_quoted(mark["text"]) if "text" in mark else None]
    parts += [_point(mark["x"], mark["y"]) if "x" in mark else None]
    return " ".join(str(part) for part in parts if part)


def _drag(mark: Mapping[str, Any]) -> str:
    return f"drag {_point(*mark['path'][0])} \u2192 {_point(*mark['path'][-1])}"


def _scroll(mark: Mapping[str, Any]) -> str:
    ways = [(mark["dy"], "down", "up"), (mark["dx"], "right", "left")]
    moved = [f"{plus if by > 0 else minus} {abs(by):.10g}" for by, plus, minus in ways if by]
    return f"scroll {' and '.join(moved) or '0'} at {_point(mark['x'], mark['y'])}"


def _press(mark: Mapping[str, Any]) -> str:
    held = f" for {mark['seconds']:.10g} s" if "seconds" in mark else ""
    return f"press {' + '.join(mark['keys'])}{held}"


def _box(mark: Mapping[str, Any]) -> str:
    return f"{mark.get('label') or 'box'} {', '.join(str(round(edge)) for edge in mark['box'])}"


def _ending(mark: Mapping[str, Any]) -> str:
    text = f" {_quoted(mark['text'])}" if mark.get("text") else ""
    return f"terminate: {mark['status']}{text}"


def _call(mark: Mapping[str, Any]) -> str:
    return str(mark["label"]) + (f" {_quoted(mark['text'])}" if mark.get("text") else "")


def _point(x: float, y: float) -> str:
    return f"{x:.10g}, {y:.10g}"


def _quoted(text: object) -> str:
    said = str(text).replace("\n", "\u23ce")
    kept = said if len(said) <= _SHOWN_CHARACTERS else f"{said[:_SHOWN_CHARACTERS]}..."
    return f"\u201c{kept}\u201d"


_SAID: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = MappingProxyType(
    {
        "drag": _drag,
        "scroll": _scroll,
        "type": lambda mark: f"type {_quoted(mark['text'])}",
        "key": _press,
        "box": _box,
        "answer": lambda mark: f"answer {_quoted(mark['text'])}",
        "terminate": _ending,
        "wait": lambda mark: f"wait {mark['seconds']:.10g} s",
        "call": _call,
    }
)
