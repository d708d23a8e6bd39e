"""The environments that a model was trained on, if its folder names them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_FILE: Final = "config.json"
_KEY: Final = "trained_on"


def trained_on(model: str) -> Mapping[str, str]:
    """Return the environments that a model was trained on, with a description of the scope.

    Args:
        model: A folder, whose config.json may have this mapping as "trained_on", or a hub name.

    Returns:
        Descriptions by environment id; empty for a hub name, or if the folder names none.
    """
    try:
        config: Any = json.loads((Path(model) / _FILE).read_text(encoding="utf-8"))
        return {env_id: str(scope) for env_id, scope in config[_KEY].items()}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {}


def describe_training(model: str, env_id: str) -> str | None:
    """Return a line about the model's expected performance; None if its training is unknown.

    Args:
        model: As for `trained_on`.
        env_id: The environment to play.
    """
    scopes = trained_on(model)
    if not scopes:
        return None
    if env_id in scopes:
        return f"the model was trained on {env_id}: {scopes[env_id]}"
    known = ", ".join(scopes)
    return (
        f"warning: the model was trained on {known}, not on {env_id}; expect rewards near chance, "
        "or choose another with --model"
    )
