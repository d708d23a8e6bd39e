"""Load an engine from a folder or hub name."""

import logging
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envkit.errors import ConfigurationError
from envkit.ranges import one_of
from envkit.tokens.hub import hub_or_cache
from envkit_transformers.builtin import BuiltinModel, builtin_model_dir
from envkit_transformers.dependencies import quiet_transformers, require_hf

if TYPE_CHECKING:
    from envkit_transformers.engine import TransformersEngine

DTYPES: Final = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProcessor:
    """A model's tokenizer and image processor.

    transformers' own Qwen-VL processors require torchvision for video, which nothing here needs.
    """

    tokenizer: Any
    """A transformers tokenizer with a chat template."""
    image_processor: Any | None = None
    """None for text models."""


def create_engine(
    model: str | os.PathLike[str] | None = None,
    *,
    dtype: str = "auto",
    device: str | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,  # noqa: ANN401  # handed on to the engine
) -> "TransformersEngine":
    """Load a model and return its engine; `engine.processor` suits a chat codec.

    Args:
        model: A local folder or a hub name of a text or Qwen-VL style model, or the name of a
            `BuiltinModel`; None uses the built-in vision model.
        dtype: "float32", "bfloat16", "float16", or "auto": the checkpoint's own, except on a CPU
            without bfloat16 arithmetic, where it is float32 (bfloat16 is several times slower).
        device: A device such as "cuda:1"; None uses a CUDA device if there is one, or else the CPU.
        progress: Receives lines while the built-in text model is built for the first time.
        options: Options of `TransformersEngine`: max_batch_tokens, kv_budget_tokens, seed, threads,
            ...

    Raises:
        MissingDependencyError: torch, transformers or the text model's weights are missing.
        ConfigurationError: The folder or name holds no model that the engine can run.
    """
    require_hf()
    one_of("dtype", dtype, DTYPES)
    if "torch" not in sys.modules:
        # Spinning OpenMP threads starve each other on a busy machine; read when torch is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from envkit_transformers.engine import TransformersEngine

    named = BuiltinModel.SEEING if model is None else os.fspath(model)
    is_builtin = named in list(BuiltinModel)
    name = str(builtin_model_dir(named, progress)) if is_builtin else _checked_name(named)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    loaded, processor = load_model(name, dtype=dtype, device=place)
    return TransformersEngine(loaded, processor, **options)


def load_model(
    name: str, *, dtype: str = "auto", device: str = "cpu"
) -> tuple[Any, ModelProcessor]:
    """Load a model and its processor.

    Args:
        name: A local folder or a hub name.
        dtype: As for `create_engine`.
        device: Device for the weights.

    Raises:
        ConfigurationError: There is no model, it lacks weights, or it has no tokenizer.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    with _loading(name):
        config: Any = AutoConfig.from_pretrained(name, trust_remote_code=False)
        has_vision = getattr(config, "vision_config", None) is not None
        factory: Any = AutoModelForImageTextToText if has_vision else AutoModelForCausalLM
        model, details = factory.from_pretrained(
            name,
            dtype=_dtype(dtype, config, torch.device(device)),
            output_loading_info=True,
            trust_remote_code=False,
        )
        if details["missing_keys"]:
            raise ConfigurationError(
                f"{name!r} lacks weights for {sorted(details['missing_keys'])[:3]} "
                f"({len(details['missing_keys'])} in total): the checkpoint is incomplete or of "
                "another architecture"
            )
        return model.to(device), load_processor(name)


def load_processor(name: str) -> ModelProcessor:
    """Load a model's tokenizer and, if it takes images, its image processor.

    Args:
        name: A local folder or a hub name.

    Raises:
        ConfigurationError: There is no tokenizer, or the image settings cannot be read.
    """
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

    with _loading(name):
        config: Any = AutoConfig.from_pretrained(name, trust_remote_code=False)
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        images: Any = None
        if getattr(config, "vision_config", None) is not None:
            images = AutoImageProcessor.from_pretrained(
                name, backend="pil", trust_remote_code=False
            )
        return ModelProcessor(tokenizer=tokenizer, image_processor=images)


def _checked_name(name: str) -> str:
    """Distinguish a wrong folder from a hub name before any network access."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            found = sorted(path.name for path in folder.iterdir())[:5]
            raise ConfigurationError(
                f"the model folder {name!r} must hold a config.json, got {found or 'nothing'}; "
                "give the folder that save_pretrained wrote"
            )
        return str(folder)
    looks_local = name.startswith((".", "~", "/")) or name.count("/") != 1 or "\\" in name
    if looks_local and ("/" in name or "\\" in name):
        raise ConfigurationError(f"the model folder {name!r} does not exist")
    return name


@contextmanager
def _loading(name: str) -> Generator[None]:
    """Turn transformers' errors for a bad model into one actionable error."""
    from safetensors import SafetensorError

    try:
        with quiet_transformers(), hub_or_cache(name):
            yield
    except ConfigurationError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        first_line = next(iter(str(error).strip().splitlines()), "")
        raise ConfigurationError(
            f"no model can be loaded from {name!r}: {type(error).__name__}: {first_line} "
            "Give a folder with config.json, weights and tokenizer, or a hub name that this "
            "machine can download"
        ) from error


def _dtype(name: str, config: Any, device: Any) -> Any:  # noqa: ANN401  # torch objects
    import torch

    if name != "auto":
        return getattr(torch, name)
    if device.type == "cpu" and not _cpu_has_bfloat16():
        return torch.float32
    return getattr(config, "dtype", None) or "auto"


def _cpu_has_bfloat16() -> bool:
    """Return whether the CPU has bfloat16 arithmetic; emulation is several times slower."""
    import torch

    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    supported = any(bool(getattr(torch.cpu, check, lambda: False)()) for check in checks)
    logging.getLogger(__name__).debug("native bfloat16: %s", supported)
    return supported
