"""Check and convert the arguments of a codec."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.tokens.template import Tokenizer, ToolSchemas
from envkit.tools import ToolSpec

_WORDS: Final = ("tokenizer", "observation", "antidisestablishmentarian", "\u4e16\u754c", "12345")
"""Words of several tokens, with many ways to split them."""


def split_processor(given: Any) -> tuple[Any, Tokenizer]:  # noqa: ANN401  # foreign objects
    """Return (processor or None, tokenizer).

    Raises:
        ConfigurationError: The object neither is nor has a tokenizer.
    """
    inner: Any = getattr(given, "tokenizer", None)
    processor = given if inner is not None and hasattr(given, "image_processor") else None
    tokenizer: Any = inner if processor is not None else given
    if not callable(getattr(tokenizer, "encode", None)) or not callable(
        getattr(tokenizer, "apply_chat_template", None)
    ):
        raise ConfigurationError(
            "a codec needs a Hugging Face tokenizer or processor, got "
            f"{type(given).__name__}; load one with envkit.tokens.load_codec(path_or_name)"
        )
    return processor, tokenizer


def tool_schemas(tools: Sequence[ToolSpec | Mapping[str, Any]]) -> ToolSchemas:
    """Return tools as JSON schemas for templates; None if there are none."""
    schemas = [tool.to_json() if isinstance(tool, ToolSpec) else dict(tool) for tool in tools]
    return schemas or None


def all_stop_ids(tokenizer: Tokenizer, given: Sequence[int] | None) -> tuple[int, ...]:
    """Return the given ids and the tokenizer's own end-of-text ids.

    Raises:
        ConfigurationError: There are no stop ids.
    """
    own = tokenizer.eos_token_id
    ends = list(own) if isinstance(own, (list, tuple)) else [] if own is None else [own]
    stops = tuple(dict.fromkeys(int(identity) for identity in [*(given or ()), *ends]))
    if not stops:
        raise ConfigurationError(
            "a codec needs the ids that end a reply, but the tokenizer has no eos_token; pass "
            "stop_ids= as in the model's generation_config.json"
        )
    return stops


def template_arguments(
    processor: Any,  # noqa: ANN401  # foreign objects
    tokenizer: Tokenizer,
    given: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the variables for a template, and the processor's own template if it differs."""
    result = dict(given or {})
    own: Any = getattr(processor, "chat_template", None)
    if isinstance(own, str) and own != getattr(tokenizer, "chat_template", None):
        result.setdefault("chat_template", own)
    return result


def check_repeatable(tokenizer: Tokenizer) -> None:
    """Reject a tokenizer that encodes a text differently each time.

    Raises:
        ConfigurationError: Its model drops merges at random (BPE dropout), or samples.
    """
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    dropout = getattr(model, "dropout", None)
    if dropout:
        raise ConfigurationError(
            f"the tokenizer uses BPE dropout ({dropout}): it drops merges at random, so no ids of "
            "a text are exact; set tokenizer.backend_tokenizer.model.dropout = None"
        )
    text = " ".join(f"{word} {word}ing {word.upper()}" for word in _WORDS)
    first = list(tokenizer.encode(text, add_special_tokens=False))
    for _ in range(3):
        if list(tokenizer.encode(text, add_special_tokens=False)) != first:
            raise ConfigurationError(
                "the tokenizer encodes the same text differently each time, so no ids are exact; "
                "turn off its sampling (sp_model_kwargs without enable_sampling)"
            )
