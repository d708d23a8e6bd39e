"""Golden files: JSON with one line per task and episode, for readable diffs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from envkit.errors import StorageError
from envkit.files import open_regular, replace_file
from envkit_certify.golden.recording import FORMAT


def load(path: str | Path) -> dict[str, Any]:
    """Read a golden file.

    Raises:
        StorageError: It cannot be read, or is not a golden file of this format.
    """
    try:
        with open_regular(Path(path)) as stream:
            content: object = json.loads(stream.read())
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"cannot read the golden file {str(path)!r}: {error}") from error
    found = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if found.get("format") != FORMAT or not {"env_id", "kwargs", "tasks", "episodes"} <= set(found):
        raise StorageError(
            f"{str(path)!r} is not a golden file of format {FORMAT}; record it with `envkit golden`"
        )
    return found


def save(golden: Mapping[str, Any], path: str | Path) -> None:
    """Write a golden file atomically, one line per task and episode.

    Raises:
        StorageError: It cannot be written.
    """
    head = {key: golden[key] for key in ("format", "env_id", "kwargs", "made_with")}
    tasks = ",\n".join(f"{json.dumps(key)}: {line(task)}" for key, task in golden["tasks"].items())
    episodes = ",\n".join(line(episode) for episode in golden["episodes"])
    body = f'{line(head)[:-1]},\n"tasks": {{\n{tasks}\n}},\n"episodes": [\n{episodes}\n]}}\n'
    replace_file(Path(path), body.encode())


def line(data: Any) -> str:  # noqa: ANN401  # any JSON data
    """Return data as one line; equal data gives equal lines."""
    return json.dumps(data, sort_keys=True, ensure_ascii=True)
