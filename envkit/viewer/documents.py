"""Other files that the viewer shows: certificates of environments, and evaluations.

`envkit certify` and `envkit eval` write them as JSON. Their keys identify them, since a certificate
can have any name. Their content is untrusted: only what a shape below names is passed on, and a
value of the wrong type is missing.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from envkit.viewer.markup import json_text

EVAL_FILE: Final = "eval.json"
"""The evaluation in the folder of its runs."""
_ESTIMATE: Final = {"mean": float, "interval": {"low": float, "high": float}}
_DIFFERENCE: Final = {**_ESTIMATE, "seeds": float}
_ANY: Final = "*"
"""The key of a shape for every entry of an object."""
_SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "certificate": {
        "target": str,
        "passed": bool,
        "is_complete": bool,
        "episodes": float,
        "lines": [
            {"name": str, "verdict": str, "value": float, "detail": str, "evidence": [str]},
        ],
    },
    "evaluation": {
        "is_complete": bool,
        "runs": {_ANY: None},
        "lines": [
            {
                "env_id": str,
                "tag": str,
                "value": str,
                **dict.fromkeys(("tasks", "episodes", "faulted", "turns", "seconds"), float),
                **dict.fromkeys(("success", "reward"), _ESTIMATE),
                "pass_at": {_ANY: _ESTIMATE},
            }
        ],
        "variants": [
            {
                **dict.fromkeys(("first", "first_run", "variant", "run"), str),
                "difference": {
                    "env_id": str,
                    **dict.fromkeys(("unpaired", "better", "worse", "tied", "p_value"), float),
                    **dict.fromkeys(("success", "reward", "turns", "reply_tokens"), _DIFFERENCE),
                },
            }
        ],
    },
}
"""What the front end gets of each kind: types, and objects and lists of them."""
_KEYS: Final = {
    "certificate": ("target", "passed", "is_complete", "lines"),
    "evaluation": ("schema", "counting", "is_complete", "lines", "runs"),
}
"""Keys that identify each kind of document."""
_MAX_ENTRIES: Final = 200
_MAX_TEXT: Final = 2_000
_MAX_NUMBER: Final = 1e300


def read_document(text: bytes) -> dict[str, Any] | None:
    """Return a certificate or an evaluation as JSON data for the front end; None for others.

    Args:
        text: The file's bytes.
    """
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    data = _mapping(found)
    for kind, keys in _KEYS.items():
        if all(key in data for key in keys) and isinstance(data["lines"], list):
            return {"kind": kind, **_fitted(data, _SHAPES[kind])}
    return None


def _fitted(given: Any, shape: Any) -> Any:  # noqa: ANN401  # JSON data, and a part of `_SHAPES`
    """Return what the shape names of a value; None for a text or a number that it is not."""
    if isinstance(shape, list):
        entries = cast("list[Any]", given)[:_MAX_ENTRIES] if isinstance(given, list) else []
        return [_fitted(entry, shape[0]) for entry in entries]
    if isinstance(shape, dict):
        data, parts = _mapping(given), cast("dict[str, Any]", shape)
        if _ANY in parts:
            kept = list(data.items())[:_MAX_ENTRIES]
            return {key[:_MAX_TEXT]: _fitted(value, parts[_ANY]) for key, value in kept}
        return {key: _fitted(data.get(key), part) for key, part in parts.items()}
    if shape is bool:
        return given is True
    if shape is float:
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
        return given if is_number and abs(given) < _MAX_NUMBER else None
    return None if shape is None or given is None else json_text(given)[:_MAX_TEXT]


def _mapping(given: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}
