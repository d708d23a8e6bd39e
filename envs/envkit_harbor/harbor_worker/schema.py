"""Refuse what Harbor would drop from a task file without a word.

Harbor ignores keys that it does not know, so a task written for a newer version or a fork is played
without what they ask for, such as a network that is off.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from harbor.models.task.config import TaskConfig
from pydantic import BaseModel

_RENAMED = frozenset(("version",))
"""Keys that Harbor reads under another name."""
_SHOWN = 8


class UnknownFieldsError(ValueError):
    """A task file has keys, or a version, that this Harbor does not know."""


def check(path: Path, config: TaskConfig, *, ignore_unknown: bool) -> None:
    """Check a task file that Harbor has read.

    Args:
        path: The task.toml.
        config: What Harbor read.
        ignore_unknown: Play the task without what is not known, as Harbor does.

    Raises:
        UnknownFieldsError: It has keys or a version that Harbor does not know.
    """
    if ignore_unknown:
        return
    newest: str = TaskConfig.model_fields["schema_version"].default
    if _numbers(config.schema_version) > _numbers(newest):
        raise UnknownFieldsError(
            f"the task file has schema_version {config.schema_version!r}, and this Harbor reads up "
            f"to {newest!r}; ignore_unknown=True plays it all the same"
        )
    found = sorted(_unknown(tomllib.loads(path.read_text()), TaskConfig, ""))
    if found:
        raise UnknownFieldsError(
            f"the task file has keys that this Harbor ignores: {', '.join(found[:_SHOWN])}; "
            "ignore_unknown=True plays it without them"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("."))


def _unknown(data: Mapping[str, Any], model: type[BaseModel], above: str) -> Iterator[str]:
    """Yield the dotted names of keys that a model does not have."""
    for key, value in data.items():
        name = f"{above}{key}"
        if key not in model.model_fields:
            if above or key not in _RENAMED:
                yield name
            continue
        inner = _model_in(model.model_fields[key].annotation)
        rows = value if isinstance(value, list) else [value]
        if inner is not None:
            for row in rows:
                if isinstance(row, dict):
                    yield from _unknown(row, inner, f"{name}.")


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401  # a type
    """Return the model in an annotation such as `list[str | Model] | None`; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(one) for one in get_args(annotation))
    return next((one for one in found if one is not None), None)
