"""Making an engine from what a command line knows: an address and a model folder."""

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit_sglang.engine import SGLangEngine

_IMAGE_TOKEN_KEYS: Final = ("image_token_id", "image_token_index")


def create_engine(
    model: str | os.PathLike[str] | None = None,
    *,
    base_url: str,
    **options: Any,  # noqa: ANN401  # forwarded to the constructor, which names them
) -> SGLangEngine:
    """Return an engine for a running server; the entry point `envkit.engines: sglang`.

    Args:
        model: Folder or cached hub name of the served model. Its config.json tells the placeholder
            of an image and the size of the vocabulary, so that a request that the server would
            misread or crash on is refused before it is sent. None leaves these checks out.
        base_url: The server or its router, such as "http://127.0.0.1:30000".
        options: Of `SGLangEngine`; they win over what the model's folder says.

    Raises:
        ConfigurationError: A bad address or option, or a model folder without a readable config.
    """
    if model is not None:
        options = {**model_facts(model), **options}
    return SGLangEngine(base_url, **options)


def model_facts(model: str | os.PathLike[str]) -> dict[str, int]:
    """Return `image_token_id` and `vocabulary_size` as far as the model's config has them.

    Raises:
        ConfigurationError: The folder has no config.json, or it is no JSON object.
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
    facts: dict[str, int] = {}
    image_token = next((config[key] for key in _IMAGE_TOKEN_KEYS if key in config), None)
    if isinstance(image_token, int):
        facts["image_token_id"] = image_token
    text = config.get("text_config")
    vocabulary = (text if isinstance(text, dict) else {}).get("vocab_size")
    vocabulary = config.get("vocab_size") if vocabulary is None else vocabulary
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
