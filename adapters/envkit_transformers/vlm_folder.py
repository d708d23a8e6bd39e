"""Small vision-language model folders that transformers, SGLang and vLLM all load.

The tiny test models and the built-in model differ only in size and text weights; this module writes
a folder from a configuration. It needs no torchvision: the image processor is the PIL one, and the
video processor's settings are written by hand.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit_transformers.smollm2 import END_OF_TURN

VISION_TOKENS: Final = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CONTEXT_LENGTH: Final = 8192
_VOCABULARY_MULTIPLE: Final = 64
_CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_HALF: Final = (0.5, 0.5, 0.5)


class Architecture(StrEnum):
    """The vision-language architectures that a folder can be made in."""

    QWEN2_5_VL = "qwen2_5_vl"
    QWEN3_VL = "qwen3_vl"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSize:
    """Sizes of the vision tower and the images."""

    depth: int = 2
    hidden: int = 64
    heads: int = 2
    max_pixels: int = 512 * 512
    """Larger images are scaled down to this many pixels."""


def chat_template() -> str:
    """Return the chat template: ChatML with a tools block, tool calls and images.

    It never rewrites history, so each rendering is a prefix of the next.
    """
    return (files("envkit_transformers") / "chat_template.jinja").read_text(encoding="utf-8")


def load_tokenizer(folder: Path) -> Any:  # noqa: ANN401  # a transformers tokenizer
    """Return the folder's tokenizer with the vision tokens and the chat template added.

    Args:
        folder: A folder with tokenizer.json, from SmolLM2 or a real Qwen model.

    Raises:
        ConfigurationError: The tokenizer has no single token for one of the ChatML markers.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    missing = [token for token in VISION_TOKENS if token not in tokenizer.get_vocab()]
    if missing:
        tokenizer.add_special_tokens({"additional_special_tokens": missing})
    for token in (*VISION_TOKENS, "<|im_start|>", END_OF_TURN, "<|endoftext|>"):
        if len(tokenizer.encode(token, add_special_tokens=False)) != 1:
            raise ConfigurationError(
                f"the tokenizer in {folder} must have {token!r} as one token; use a Qwen tokenizer"
            )
    tokenizer.eos_token, tokenizer.pad_token = END_OF_TURN, "<|endoftext|>"
    tokenizer.chat_template = chat_template()
    tokenizer.model_max_length = CONTEXT_LENGTH
    return tokenizer


def padded_vocabulary(tokenizer: Any) -> int:  # noqa: ANN401  # a transformers tokenizer
    """Return the number of embedding rows for this tokenizer."""
    return -(-len(tokenizer) // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


def mrope_section(head_dim: int) -> list[int]:
    """Split half a head's dimensions into those for time, height and width."""
    half, time = head_dim // 2, head_dim // 8
    height = (half - time) // 2
    return [time, height, half - time - height]


def build_config(
    architecture: Architecture,
    tokenizer: Any,  # noqa: ANN401  # a transformers tokenizer
    *,
    text: Mapping[str, Any],
    rope_theta: float,
    vision: VisionSize,
) -> Any:  # noqa: ANN401  # a transformers configuration
    """Return the model's configuration.

    Args:
        architecture: Which model family.
        tokenizer: Gives the vocabulary and the special ids.
        text: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
            num_key_value_heads, head_dim, rms_norm_eps of the text model.
        rope_theta: Base of the text model's rotary embedding.
        vision: Sizes of the tower.
    """
    from transformers import Qwen2_5_VLConfig, Qwen3VLConfig

    sizes = dict(text)
    head_dim = sizes.pop("head_dim")
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": rope_theta,
        "mrope_section": mrope_section(head_dim),
    }
    tower: dict[str, Any] = {
        "depth": vision.depth,
        "hidden_size": vision.hidden,
        "intermediate_size": 2 * vision.hidden,
        "num_heads": vision.heads,
        "out_hidden_size": sizes["hidden_size"],
        "patch_size": patch_size(architecture),
    }
    sizes |= {
        "vocab_size": padded_vocabulary(tokenizer),
        "max_position_embeddings": CONTEXT_LENGTH,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    names = ("vision_start", "vision_end", "image", "video")
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
        for name, token in zip(names, VISION_TOKENS, strict=True)
    }
    if architecture is Architecture.QWEN3_VL:
        sizes |= {"head_dim": head_dim, "rope_parameters": rope | {"mrope_interleaved": True}}
        tower |= {"num_position_embeddings": 16 * 16, "deepstack_visual_indexes": [0]}
        factory: Any = Qwen3VLConfig
    else:
        sizes |= {"rope_parameters": rope}
        tower |= {"fullatt_block_indexes": [vision.depth - 1], "window_size": 112}
        factory = Qwen2_5_VLConfig
    config = factory(text_config=sizes, vision_config=tower, tie_word_embeddings=True, **ids)
    config.text_config.tie_word_embeddings = True
    return config


def build_model(config: Any, *, seed: int) -> Any:  # noqa: ANN401  # transformers objects
    """Return a randomly initialised model without changing the global generator."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration

    factory: Any = (
        Qwen3VLForConditionalGeneration
        if config.model_type == Architecture.QWEN3_VL
        else Qwen2_5_VLForConditionalGeneration
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory(config)


def save_folder(
    folder: Path,
    model: Any,  # noqa: ANN401  # a transformers model
    tokenizer: Any,  # noqa: ANN401  # a transformers tokenizer
    *,
    max_pixels: int | None,
) -> None:
    """Write model, tokenizer and, for a vision-language one, the image settings.

    Args:
        folder: An existing empty folder.
        model: The model, saved in its own dtype.
        tokenizer: From `load_tokenizer`.
        max_pixels: None for a text model.
    """
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.config.dtype = model.dtype
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    processor = None
    if max_pixels is not None:
        architecture = Architecture(model.config.model_type)
        three = architecture is Architecture.QWEN3_VL
        processor = "Qwen3VLProcessor" if three else "Qwen2_5_VLProcessor"
        _save_image_settings(folder, architecture, processor, max_pixels)
    _rewrite_tokenizer_config(folder, processor)


def patch_size(architecture: Architecture) -> int:
    """Return the side of a vision patch in pixels."""
    return 16 if architecture is Architecture.QWEN3_VL else 14


def _save_image_settings(
    folder: Path, architecture: Architecture, processor: str, max_pixels: int
) -> None:
    """Write both preprocessor files with names that old and new releases accept."""
    three = architecture is Architecture.QWEN3_VL
    patch = patch_size(architecture)
    settings: dict[str, Any] = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(_HALF if three else _CLIP_MEAN),
        "image_std": list(_HALF if three else _CLIP_STD),
        "merge_size": 2,
        "patch_size": patch,
        "processor_class": processor,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"shortest_edge": 4 * (2 * patch) ** 2, "longest_edge": max_pixels},
        "temporal_patch_size": 2,
    }
    video = "Qwen3VLVideoProcessor" if three else "Qwen2VLVideoProcessor"
    _write_json(
        folder / "preprocessor_config.json",
        settings | {"image_processor_type": "Qwen2VLImageProcessor"},
    )
    _write_json(
        folder / "video_preprocessor_config.json", settings | {"video_processor_type": video}
    )


def _rewrite_tokenizer_config(folder: Path, processor: str | None) -> None:
    """Use class names that releases before transformers 5.20 also know."""
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for key in ("backend", "is_local", "local_files_only"):
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if processor is not None:
        config["processor_class"] = processor
    _write_json(path, config)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(dict(data), indent=2), encoding="utf-8")
