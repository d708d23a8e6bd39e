"""Text of an episode as other programs can hold it."""

import json
from collections.abc import Mapping
from typing import Any

from envkit.messages import text_of
from envkit.trajectory.plain import to_plain
from envkit.trajectory.trajectory import Trajectory


def utf8(text: str) -> str:
    """Return text that any file can hold: a model may have sampled half a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


def optional_utf8(text: str | None) -> str | None:
    """Return the same; None stays None."""
    return None if text is None else utf8(text)


def last_reply(trajectory: Trajectory) -> str | None:
    """Return what the model said last; None where it said nothing."""
    replies = [entry for entry in trajectory.messages if entry["role"] == "assistant"]
    return utf8(text_of(replies[-1])) if replies else None


def json_text(value: Mapping[str, Any], where: str) -> str:
    """Return free-form data as JSON text; its pictures by their hash, as in trajectory files.

    Args:
        value: The data.
        where: What it is, for the error.

    Raises:
        StorageError: JSON cannot hold it.
    """
    return json.dumps(to_plain(value, where, lambda _: None), sort_keys=True)
