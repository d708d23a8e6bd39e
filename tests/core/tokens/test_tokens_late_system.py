"""Observations with system messages, and tool results with user messages between them."""

from typing import Any

import pytest
from fakes.templates import encode, literal_codec, render, stop_ids

from envkit.errors import TemplateError

REPLY: Any = {"role": "assistant", "content": "w."}


def _messages(*roles: str) -> list[Any]:
    return [{"role": role, "content": f"{role} {n}."} for n, role in enumerate(roles)]


def _delta(name: str, history: list[Any], observed: list[Any]) -> list[int]:
    codec = literal_codec(name)
    ids = codec.encode_observation(observed, sampled_ids=stop_ids(name)[:1], history=history)
    return list(ids.wire_ids)


@pytest.mark.parametrize("name", ["qwen3", "qwen2.5-vl", "smollm2", "llama3.2", "phi3"])
@pytest.mark.parametrize(
    "roles", [("system",), ("system", "user"), ("user", "system"), ("system", "system", "user")]
)
def test_late_system_message_is_written_as_in_a_full_render(
    name: str, roles: tuple[str, ...]
) -> None:
    history, observed = [*_messages("system", "user"), REPLY], _messages(*roles)
    delta = _delta(name, history, observed)
    whole = encode(name, render(name, [*history, *observed]))
    assert delta == whole[-len(delta) :]
    later = [*history, *observed, REPLY]
    delta = _delta(name, later, _messages("user"))
    whole = encode(name, render(name, [*later, *_messages("user")]))
    assert delta == whole[-len(delta) :]


@pytest.mark.parametrize(
    "roles", [("tool", "system"), ("tool", "user", "tool"), ("tool", "user", "tool", "user")]
)
def test_results_between_other_messages_are_written_as_in_a_full_render(
    roles: tuple[str, ...],
) -> None:
    history, observed = [*_messages("user"), REPLY], _messages(*roles)
    delta = _delta("qwen3", history, observed)
    whole = encode("qwen3", render("qwen3", [*history, *observed]))
    assert delta == whole[-len(delta) :]


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma3", "mistral-7b", "glm4moe"])
def test_late_system_message_is_refused_where_a_template_moves_or_rejects_it(name: str) -> None:
    """DeepSeek collects system messages at the start; after GLM's, no stop token was sampled."""
    history = [*_messages("user"), REPLY]
    for roles in (("system",), ("system", "user")):
        with pytest.raises(TemplateError, match="system message after a reply"):
            _delta(name, history, _messages(*roles))


def test_conversation_with_a_late_system_message_is_read_as_a_whole_without_a_proof() -> None:
    history = [*_messages("system", "user", "system", "user"), REPLY]
    delta = _delta("deepseek-v3", history, _messages("user"))
    whole = encode("deepseek-v3", render("deepseek-v3", [*history, *_messages("user")]))
    assert delta == whole[-len(delta) :]
