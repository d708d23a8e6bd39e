"""A small Qwen2.5-VL with tokenizer and processor, without a download.

The architecture, image processor and chat markers are the real ones; only the sizes and the
vocabulary are small. The tokenizer is a byte-level BPE over the environment's own sentences, in
which every digit is one token.
"""

from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from envkit.tokens import ChatCodec
from envkit_transformers import BuiltinModel, builtin_model_dir
from envkit_transformers.loading import load_model
from envkit_transformers.vlm_folder import (
    VISION_TOKENS,
    Architecture,
    VisionSize,
    build_config,
    build_model,
    chat_template,
    patch_size,
)
from envkit_trl import build_processor, load_processor

SENTENCES: Final = (
    "You read codes off pictures. Reply with the code only.",
    "Which code of length 1 does the picture show?",
    "Right. Which code of length 1 does the picture show?",
    "Wrong. Which code of length 1 does the picture show?",
    "Wrong: no run of 1 letters and digits in the reply.",
    "system\n",
    "user\n",
    "assistant\n",
)
_VOCABULARY: Final = 320
_TEXT: Final[dict[str, Any]] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
}
_INITIAL_SPREAD: Final = 0.06
"""Standard deviation of the first weights.

The models' own 0.02 suits widths in the thousands. Here 1 / sqrt(width) is 0.09, and an image would
hardly change the logits at first.
"""
_VISION: Final = VisionSize(depth=3, hidden=160, heads=5, max_pixels=112 * 112)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """An untrained policy."""

    model: Any
    processor: Any

    @property
    def parameter_count(self) -> int:
        """Number of weights, counting tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def codec(self) -> ChatCodec:
        """Return the codec of the processor; the padding of the embeddings can be sampled too."""
        size: int = self.model.config.text_config.vocab_size
        return ChatCodec(self.processor, vocabulary_size=size)


def make_small_model(seed: int) -> SmallModel:
    """Return a random model, determined by the seed."""
    tokenizer = _tokenizer()
    config = build_config(
        Architecture.QWEN2_5_VL, tokenizer, text=_TEXT, rope_theta=10_000.0, vision=_VISION
    )
    for part in (config.text_config, config.vision_config):
        part.initializer_range = _INITIAL_SPREAD
    images = Qwen2VLImageProcessorPil(
        patch_size=patch_size(Architecture.QWEN2_5_VL),
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 56 * 56, "longest_edge": _VISION.max_pixels},
    )
    processor = build_processor(config, tokenizer=tokenizer, image_processor=images)
    return SmallModel(model=build_model(config, seed=seed), processor=processor)


def load_half_trained() -> SmallModel:
    """Return the built-in model that reads half of all single digits, in float32."""
    folder = str(builtin_model_dir(BuiltinModel.HALF))
    model, _ = load_model(folder, dtype="float32")
    return SmallModel(model=model, processor=load_processor(folder))


def _tokenizer() -> Any:  # noqa: ANN401  # a transformers tokenizer
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend.train_from_iterator(SENTENCES, trainer)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        additional_special_tokens=["<|im_start|>", *VISION_TOKENS],
    )
    tokenizer.chat_template = chat_template()
    return tokenizer
