"""Load a codec from a model folder or a hub name."""

import importlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.tokens.codec import ChatCodec
from envkit.tokens.hub import hub_or_cache
from envkit.tokens.light import load_light
from envkit.tokens.processor_files import load_processor
from envkit.tools import ToolSpec


def load_codec(
    path_or_name: str | Path,
    *,
    tools: Sequence[ToolSpec] = (),
    stop_ids: Sequence[int] | None = None,
    **options: Any,  # noqa: ANN401  # passed on to ChatCodec, which types them
) -> ChatCodec:
    """Load a model's tokenizer, its processor if it reads images, and its stop ids.

    Args:
        path_or_name: A model folder, or a name on the Hugging Face hub.
        tools: The tools that prompts offer to the model.
        stop_ids: Stop ids of the engine in addition to the model's own.
        options: Further arguments of `ChatCodec`.

    Raises:
        ConfigurationError: The folder is not a model folder, or the model cannot be loaded.
        MissingDependencyError: transformers is not installed, and the model's files are not
            sufficient (see `envkit.tokens.light`).
        TemplateError: The model's chat template cannot be encoded exactly.
    """
    name = str(path_or_name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        name = str(folder)
        _check_folder(folder)
    elif folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ConfigurationError(f"there is no model folder {name!r}")
    owner = _load_light(folder, full=not options.get("lazy_features"))
    with hub_or_cache(name):
        if owner is None:
            owner = _load_owner(name, with_images=options.get("image_processor") is None)
        options.setdefault("vocabulary_size", vocabulary_size_of(name))
        ends = generation_stops(name) or _eos_of(read_json(name, "config.json"))
    return ChatCodec(owner, tools=tools, stop_ids=[*(stop_ids or ()), *ends], **options)


def _load_light(folder: Path, *, full: bool) -> Any:  # noqa: ANN401  # one of two classes
    """Load a model without transformers; None if transformers has to load it."""
    is_installed = find_spec("transformers") is not None
    # The light classes give the same ids. With lazy features this process reads no tensors, so
    # importing transformers and torch would waste five seconds of CPU time in a scripted rollout.
    if not folder.is_dir() or (is_installed and full):
        return None
    try:
        return load_light(folder, lambda file: read_json(str(folder), file))
    except MissingDependencyError:
        if not is_installed:
            raise
        return None


def _load_owner(name: str, *, with_images: bool) -> Any:  # noqa: ANN401  # foreign
    """Return the model's processor, or its tokenizer if it has no processor."""
    tokenizer = _load_tokenizer(name)
    template = _processor_template(name)
    if template is not None:
        tokenizer.chat_template = template
    if not with_images:
        return tokenizer
    processor = load_processor(name, tokenizer, lambda file: read_json(name, file))
    return tokenizer if processor is None else processor


def _check_folder(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    if not names & {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"}:
        raise ConfigurationError(
            f"{str(folder)!r} is not a model folder: it has no tokenizer.json or "
            f"tokenizer_config.json, got {sorted(names)[:8]}"
        )


def _load_tokenizer(name: str) -> Any:  # noqa: ANN401  # transformers is an optional dependency
    try:
        from transformers import AutoTokenizer
    except (ImportError, RuntimeError) as error:  # RuntimeError: a module of it fails to load
        raise MissingDependencyError.for_extra(
            "loading a tokenizer", "transformers", "transformers"
        ) from error
    loader: Any = AutoTokenizer
    try:
        return loader.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ConfigurationError(
            f"no tokenizer can be loaded from {name!r}; pass a model folder or a hub name: "
            f"{_first_line(error)}"
        ) from error


def generation_stops(name: str) -> list[int]:
    """Return the ids of generation_config.json that end a reply; none without the file.

    Args:
        name: A model folder, or a name on the Hugging Face hub.
    """
    return _eos_of(read_json(name, "generation_config.json"))


def _eos_of(config: dict[str, Any]) -> list[int]:
    ends: Any = config.get("eos_token_id")
    if ends is None:
        inner: Any = config.get("text_config")
        ends = inner.get("eos_token_id") if isinstance(inner, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON
    if isinstance(ends, int):
        return [ends]
    return [int(end) for end in ends or ()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON


def vocabulary_size_of(name: str) -> int | None:
    """Return how many ids a model can sample according to its config.json, or None.

    Args:
        name: A model folder, or a name on the Hugging Face hub.
    """
    config = read_json(name, "config.json")
    inner: Any = config.get("text_config")
    sizes: list[Any] = [config.get("vocab_size")]
    if isinstance(inner, dict):
        sizes.append(inner.get("vocab_size"))  # pyright: ignore[reportUnknownMemberType]  # JSON
    return max((size for size in sizes if isinstance(size, int)), default=None)


def _resolve(name: str, file: str) -> Path | None:
    folder = Path(name)
    if folder.is_dir():
        path = folder / file
        return path if path.is_file() else None
    hub: Any = importlib.import_module("transformers.utils.hub")
    try:
        found: Any = hub.cached_file(
            name,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:  # no such repository: loading the tokenizer reports that
        return None
    return None if found is None else Path(found)


def read_json(name: str, file: str) -> dict[str, Any]:
    """Return a model's JSON file; empty if it has none.

    Args:
        name: A model folder, or a name on the Hugging Face hub.
        file: Name of the file.

    Raises:
        ConfigurationError: The file is damaged.
    """
    path = _resolve(name, file)
    if path is None:
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read as JSON: {error}") from error


def _processor_template(name: str) -> str | None:
    """Return the processor's template if it is stored apart from the tokenizer's, else None.

    transformers 5 writes chat_template.jinja, which tokenizers also read.
    """
    if _resolve(name, "chat_template.jinja") is not None:
        return None
    for file in ("chat_template.json", "processor_config.json"):
        template: Any = read_json(name, file).get("chat_template")
        if isinstance(template, str):
            return template
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
