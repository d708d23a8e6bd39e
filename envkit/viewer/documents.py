"""Other files that the viewer shows: certificates of environments, and evaluations.

`envkit certify` and `envkit eval` write them as JSON. Their keys identify them, since a certificate
can have any name. Their content is untrusted, so values of the wrong type are left out.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

_KINDS: Final = {
    "certificate": ("target", "passed", "is_complete", "lines"),
    "evaluation": ("schema", "counting", "is_complete", "lines", "runs"),
}
"""Keys that identify each kind of document."""
_MAX_LINES: Final = 200
_MAX_EVIDENCE: Final = 20
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
    for kind, keys in _KINDS.items():
        if all(key in data for key in keys) and isinstance(data["lines"], list):
            lines = [_mapping(line) for line in cast("list[Any]", data["lines"])[:_MAX_LINES]]
            build = _certificate if kind == "certificate" else _evaluation
            return {"kind": kind, "is_complete": data["is_complete"] is True, **build(data, lines)}
    return None


def _certificate(data: Mapping[str, Any], lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "title": _text(data.get("target")),
        "passed": data["passed"] is True,
        "episodes": _number(data.get("episodes")),
        "seed": None if data.get("seed") is None else _text(data.get("seed")),
        "lines": [
            {
                "name": _text(line.get("name")),
                "verdict": _text(line.get("verdict")),
                "value": _number(line.get("value")),
                "detail": _text(line.get("detail")),
                "evidence": _texts(line.get("evidence")),
            }
            for line in lines
        ],
    }


def _evaluation(data: Mapping[str, Any], lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "title": ", ".join(dict.fromkeys(_text(line.get("env_id")) for line in lines)),
        "runs": [_text(name) for name in _mapping(data["runs"])],
        "lines": [
            {
                "env": _text(line.get("env_id")),
                "tag": None if line.get("tag") is None else _text(line["tag"]),
                "value": None if line.get("value") is None else _text(line["value"]),
                **{name: _number(line.get(name)) for name in _COUNTS},
                "success": _estimate(line.get("success")),
                "reward": _estimate(line.get("reward")),
                "pass_at": [
                    [_text(k), estimate]
                    for k, given in _mapping(line.get("pass_at")).items()
                    if (estimate := _estimate(given)) is not None
                ],
            }
            for line in lines
        ],
    }


_COUNTS: Final = ("tasks", "episodes", "faulted", "aborted", "turns", "seconds", "cost")


def _estimate(given: object) -> dict[str, float | None] | None:
    data = _mapping(given)
    mean, ends = _number(data.get("mean")), _mapping(data.get("interval"))
    if mean is None:
        return None
    return {"mean": mean, "low": _number(ends.get("low")), "high": _number(ends.get("high"))}


def _mapping(given: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def _number(given: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return None
    return given if abs(given) < _MAX_NUMBER else None


def _text(given: object) -> str:
    try:
        return (given if isinstance(given, str) else json.dumps(given))[:_MAX_TEXT]
    except RecursionError:
        return "…"


def _texts(given: object) -> list[str]:
    entries = cast("list[Any]", given) if isinstance(given, list) else []
    return [_text(entry) for entry in entries[:_MAX_EVIDENCE]]
