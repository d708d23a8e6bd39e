"""Real codecs for tests of the rollout: tokenizers and templates of the tiny model folders."""

from functools import cache

from fakes.models import tiny_model_dir

from envkit.tokens import ChatCodec, load_codec


@cache
def text_codec() -> ChatCodec:
    """Return the codec of a text model."""
    return load_codec(tiny_model_dir("llama"))


@cache
def vision_codec() -> ChatCodec:
    """Return the codec of a Qwen2.5-VL style model, image processor included."""
    return load_codec(tiny_model_dir("qwen2_5_vl"))
