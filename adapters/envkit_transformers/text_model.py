"""The built-in text model: SmolLM2-135M-Instruct as the text half of a Qwen2.5-VL architecture.

Text replies equal SmolLM2's: a Llama is Qwen2.5-VL's text model with zero q/k/v biases, and
multimodal rotary positions equal plain ones on text. Images go through a real vision tower with
random weights: they change the output and exercise the whole path, but the model understands no
image; the text half reads them as blank lines. SGLang and vLLM can serve the folder.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envkit.errors import StorageError
from envkit.files import cache_dir
from envkit_transformers import vlm_folder
from envkit_transformers.cache import built_folder, is_intact
from envkit_transformers.dependencies import quiet_transformers, require_hf
from envkit_transformers.smollm2 import WHEEL, LlamaSizes, gguf_dir, load_weights, tokenizer_dir

TEXT_MODEL_NAME: Final = "smollm2-135m-qwen2.5-vl"
_SEED: Final = 0
# Small images, about 130 tokens each: larger ones gain nothing.
_VISION: Final = vlm_folder.VisionSize(max_pixels=320 * 320)
_IMAGE_LOUDNESS: Final = 0.3
"""Scale of the tower's output, in standard deviations of the token embeddings."""
_LINE_BREAK: Final = "Ċ"  # as byte-level vocabularies write it
_RECIPE: Final = {"version": 1, "weights": WHEEL, "dtype": "bfloat16", "seed": _SEED}
_LOGGER: Final = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Receives a line of progress."""


def text_model_dir(progress: Progress | None = None) -> Path:
    """Return the folder of the text model, building it if missing or broken.

    Building it takes 15 to 60 seconds, at most 1.6 GB of memory and 280 MB of disk.

    Args:
        progress: Receives a line before each long part; None writes them to the log.

    Raises:
        MissingDependencyError: torch, transformers or the wheel with the weights is missing; the
            message has the command that installs it.
        StorageError: The cache folder cannot be written.
    """
    require_hf()
    folder = cache_dir() / TEXT_MODEL_NAME
    if is_intact(folder, recipe=_RECIPE):
        return folder
    gguf_dir()
    report = progress or _LOGGER.info

    def build(target: Path) -> None:
        _build(target, report)

    report(f"building the built-in text model in {folder} (once, up to a minute)")
    with quiet_transformers():
        built = built_folder(folder, recipe=_RECIPE, build=build)
    report("the built-in text model is ready")
    return built


def _build(folder: Path, report: Progress) -> None:
    import torch

    report("extracting the tokenizer from the weights file")
    tokenizer = vlm_folder.load_tokenizer(tokenizer_dir())
    report("unpacking the weights")
    sizes, weights = load_weights()
    report("writing the model")
    model = vlm_folder.build_model(_config(sizes, tokenizer), seed=_SEED)
    _graft(model, weights, line_break=tokenizer.convert_tokens_to_ids(_LINE_BREAK))
    vlm_folder.save_folder(
        folder, model.to(torch.bfloat16), tokenizer, max_pixels=_VISION.max_pixels
    )


def _config(sizes: LlamaSizes, tokenizer: Any) -> Any:  # noqa: ANN401  # transformers objects
    text = {
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.key_value_heads,
        "head_dim": sizes.hidden // sizes.heads,
        "rms_norm_eps": sizes.norm_epsilon,
    }
    return vlm_folder.build_config(
        vlm_folder.Architecture.QWEN2_5_VL,
        tokenizer,
        text=text,
        rope_theta=sizes.rope_theta,
        vision=_VISION,
    )


def _graft(
    model: Any,  # noqa: ANN401  # a transformers model
    weights: dict[str, NDArray[np.float32]],
    *,
    line_break: int,
) -> None:
    """Copy the Llama's weights into the text model; new rows of the vocabulary get the mean."""
    import torch

    text: Any = model.model.language_model
    with torch.no_grad():
        own: dict[str, Any] = text.state_dict()
        for name, values in weights.items():
            target, source = own.pop(name), torch.tensor(values)
            target[: len(source)] = source
            target[len(source) :] = source.mean(0)
        for name, tensor in own.items():  # the q/k/v biases, which a Llama does not have
            if not name.endswith("_proj.bias"):
                raise StorageError(f"the weights file of {WHEEL} has nothing for {name}")
            tensor.zero_()
        _blank_images(model, text.embed_tokens.weight, line_break)
    model.tie_weights()


def _blank_images(model: Any, embeddings: Any, line_break: int) -> None:  # noqa: ANN401
    """Make the tower output line breaks with a little of the image on top."""
    import torch

    tower: Any = model.model.visual
    patches = torch.randn(16, tower.patch_embed.proj.weight[0].numel(), generator=_generator())
    output: Any = tower(patches, grid_thw=torch.tensor([[1, 4, 4]])).pooler_output
    last: Any = tower.merger.mlp[-1]
    # Raw noise of any scale makes the text model end its reply or ramble. After blank lines it
    # answers as without an image, and its log-probabilities still distinguish two images.
    last.weight.mul_(_IMAGE_LOUDNESS * embeddings.std() / output.std())
    last.bias.copy_(embeddings[line_break])


def _generator() -> Any:  # noqa: ANN401  # a torch generator
    import torch

    return torch.Generator().manual_seed(_SEED)
