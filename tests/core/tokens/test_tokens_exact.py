"""Deltas and prompts against full renders by transformers, for every fetched template."""

import re
from typing import Any, Literal

import jinja2
import pytest
from fakes.budget import examples
from fakes.codecs import vision_codec
from fakes.matrix import share
from fakes.templates import (
    CHATML_SPECS,
    OTHER_SPECS,
    SPECS,
    default_codec,
    encode,
    literal_codec,
    load_tokenizer,
    render,
    stop_ids,
)
from fakes.templates_checks import (
    check_append_only_ledger,
    check_deltas,
    check_rewriting_has_a_witness,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import render_jinja_template

from envkit.errors import TemplateError
from envkit.messages import Message, message
from envkit.tokens import ChatCodec
from envkit.tokens.jinja import compile_template

CHATML, OTHERS = ([spec.name for spec in specs] for specs in (CHATML_SPECS, OTHER_SPECS))


@pytest.mark.parametrize("name", [*CHATML, *share(OTHERS, of=3)])
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_codec_delta_equals_the_full_render_invariant_3(name: str, data: Any) -> None:
    check_deltas(name, data)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if not spec.rewrites])
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_codec_ledger_is_append_only_where_the_audit_says_invariant_4(name: str, data: Any) -> None:
    check_append_only_ledger(name, data)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.rewrites])
def test_audit_says_that_history_is_rewritten_only_where_it_is(name: str) -> None:
    check_rewriting_has_a_witness(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_codec_equals_the_full_render_at_length(name: str, data: Any) -> None:
    check_deltas(name, data)
    if not SPECS[name].rewrites:
        check_append_only_ledger(name, data)


STARTS = ("The answer is", "{", "  spaced ", "two\nlines\n", "The answer is 4. The answer")


def talk(text: Any) -> list[Message]:
    return [message("user", "What is 2 + 2?"), message("assistant", text)]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_start_of_a_reply_is_rendered_as_transformers_renders_it(name: str, start: str) -> None:
    codec, tokenizer = default_codec(name), load_tokenizer(name)
    plain: Any = talk(start)
    try:
        text = tokenizer.apply_chat_template(
            plain, tokenize=False, continue_final_message=True, **SPECS[name].kwargs
        )
    except Exception:  # noqa: BLE001  # a template raises what it likes
        with pytest.raises(TemplateError):
            codec.encode_prompt(plain, after_reply="continue")
        return
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert list(codec.encode_prompt(plain, after_reply="continue").wire_ids) == expected


@pytest.mark.parametrize("name", sorted(SPECS))
def test_reply_at_the_end_is_answered_as_the_template_renders_it(name: str) -> None:
    codec = default_codec(name)
    try:
        text = render(name, talk("Four."))  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  # a template raises what it likes
        with pytest.raises(TemplateError):
            codec.encode_prompt(talk("Four."), after_reply="answer")
        return
    expected = load_tokenizer(name)(text, add_special_tokens=False)["input_ids"]
    assert list(codec.encode_prompt(talk("Four."), after_reply="answer").wire_ids) == expected


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return vision_codec()


@pytest.mark.parametrize("after", ["refuse", "continue"])
def test_message_of_the_user_is_answered_in_any_case(
    codec: ChatCodec, after: Literal["refuse", "continue"]
) -> None:
    asked = [message("user", "one")]
    found = codec.encode_prompt(asked, after_reply=after)
    assert found.wire_ids == codec.encode_prompt(asked).wire_ids


CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}
BAD: list[Any] = [
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": []},
    {"role": "assistant", "content": "Calling.", "tool_calls": [CALL]},
]


@pytest.mark.parametrize("last", BAD, ids=str)
def test_only_text_continues(codec: ChatCodec, last: Any) -> None:
    with pytest.raises(TemplateError, match="only a reply that ends with text can continue"):
        codec.encode_prompt([message("user", "one"), last], after_reply="continue")


def test_reply_is_refused_unless_asked_for(codec: ChatCodec) -> None:
    with pytest.raises(TemplateError, match="must end with a message for the model to answer"):
        codec.encode_prompt(talk("Four."))


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


@pytest.mark.parametrize(
    "text",
    [
        "{% for c in 'ab' %}{{ c.type }}{{ c['type'] }}{{ c['type'] is defined }}{% endfor %}",
        "{{ 'ab'['upper']() }}{{ 'ab'['x'] | default('none') }}{{ 'ab'[0] }}{{ 'ab'[9] }}",
        "{% set m = {'role': 'a', 'items': 1, 'x': none} %}{{ m.role }}{{ m['role'] }}{{ m.x }}"
        "{{ m.y is defined }}{{ m['y'] is defined }}{{ m.y | default('d') }}{{ m['y'] or 'o' }}",
        "{% set m = {'items': 1, 'b': 2} %}{{ m['items'] }}{{ m.items() | list }}"
        "{{ m.get('b') }}{% set n = namespace(a=m) %}{{ n.a.b }}{{ n['a'] is defined }}",
        "{% set m = {1: 'one', true: 'two'} %}{{ m[1] }}{{ m['1'] is defined }}{{ m.clear }}"
        "{{ m.__class__ is defined }}{{ m['__class__'] is defined }}{{ m.mro is defined }}",
        "{{ ['\u00e9', {'b': 1, 'a': '<'}] | tojson }}",
        "{{ {'b': [1], 'a': 2} | tojson(indent=2, sort_keys=true) }}",
        "{{ {'b': 1, 'a': 2} | tojson(ensure_ascii=true, separators=[',', ':']) }}",
    ],
)
def test_template_renders_as_transformers_does(text: str) -> None:
    expected, _ = render_jinja_template([[]], chat_template=text)
    assert compile_template(text).render(messages=[]) == expected[0]


class Record(dict[str, int]):
    """A mapping with an attribute that is also a key."""

    role = "attribute"


@pytest.mark.parametrize("text", ["{{ m.role }}", "{{ m['role'] }}", "{{ m.x }}{{ m['x'] }}"])
def test_template_reads_other_mappings_as_jinja_does(text: str) -> None:
    sandbox, record = ImmutableSandboxedEnvironment(), Record(role=1)
    expected = sandbox.from_string(text).render(m=record)
    assert compile_template(text).render(m=record) == expected


@pytest.mark.parametrize("text", ["{{ m.x.y }}", "{{ m['x']['y'] }}", "{{ m.update({'a': 1}) }}"])
def test_template_rejects_what_jinja_rejects(text: str) -> None:
    with pytest.raises(jinja2.TemplateError) as theirs:
        ImmutableSandboxedEnvironment().from_string(text).render(m={"role": 1})
    with pytest.raises(type(theirs.value), match=re.escape(str(theirs.value))):
        compile_template(text).render(m={"role": 1})
