"""Create an engine from command line arguments: addresses and a model folder."""

import json
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import ConfigurationError
from envkit_remote.engine import RemoteEngine
from envkit_remote.router import RoutedEngine

_IMAGE_TOKEN_KEYS: Final = ("image_token_id", "image_token_index")


def connect(
    engine_type: type[RemoteEngine],
    model: str | os.PathLike[str] | None,
    base_url: str | Sequence[str],
    options: Mapping[str, Any],
) -> RemoteEngine | RoutedEngine:
    """Return an engine for a running server, or one for several servers of the same model.

    Args:
        engine_type: Class of engines for one server.
        model: Folder or cached hub name of the served model. Its config.json has the image
            placeholder and the vocabulary size, so requests that the server would misread or crash
            on are rejected before sending. None skips these checks.
        base_url: Addresses: one, several separated by commas, or a list.
        options: Options of `engine_type`; they override the model folder's values.

    Raises:
        ConfigurationError: A bad address or option, a repeated address, or a model folder without a
            readable config.
    """
    if model is not None:
        options = {**model_facts(model), **options}
    parts = base_url.split(",") if isinstance(base_url, str) else base_url
    addresses = [part.strip() for part in parts]
    engines = [engine_type(address, **options) for address in addresses]
    return engines[0] if len(engines) == 1 else RoutedEngine(engines)


def model_facts(model: str | os.PathLike[str]) -> dict[str, int]:
    """Return `image_token_id` and `vocabulary_size`, if the model's config has them.

    Raises:
        ConfigurationError: The folder has no config.json, or it is not a JSON object.
    """
    path = _config_path(model)
    if path is None:
        return {}
    try:
        config: Any = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the model's {path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"the model's {path} must hold a JSON object")
    fields = cast("dict[str, Any]", config)
    facts: dict[str, int] = {}
    image_token = next((fields[key] for key in _IMAGE_TOKEN_KEYS if key in fields), None)
    if isinstance(image_token, int):
        facts["image_token_id"] = image_token
    text = fields.get("text_config")
    inside = cast("dict[str, Any]", text) if isinstance(text, dict) else {}
    vocabulary = inside.get("vocab_size", fields.get("vocab_size"))
    if isinstance(vocabulary, int):
        facts["vocabulary_size"] = vocabulary
    return facts


def _config_path(model: str | os.PathLike[str]) -> Path | None:
    folder = Path(model)
    if folder.is_dir():
        path = folder / "config.json"
        if not path.is_file():
            raise ConfigurationError(
                f"the model folder {str(folder)!r} has no config.json; give the folder that the "
                "server serves"
            )
        return path
    try:
        hub = import_module("huggingface_hub")
        cached = hub.try_to_load_from_cache(str(model), "config.json")
    except (ImportError, ValueError):
        return None
    return Path(cached) if isinstance(cached, str) else None
