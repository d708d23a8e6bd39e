"""The short way to write an observation: equal to the template, or not taken."""

import pytest
from fakes.budget import examples
from fakes.templates import SPECS, default_codec, make_codec
from fakes.templates_oracle import texts
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.tokens.shape import TailShape

DIRECT = [
    "qwen2.5",
    "qwen2.5-vl",
    "qwen3",
    "qwen3-nothink",
    "qwen3-2507",
    "qwen3-vl",
    "llama3.2",
    "gemma3",
    "deepseek-v3",
    "mistral-7b",
    "phi3",
    "smollm2",
]


def shape_of(name: str) -> TailShape:
    shape = default_codec(name)._calibration.rules["user"].shape
    assert shape is not None, f"{name} is no longer written directly"
    return shape


@pytest.mark.parametrize("name", DIRECT)
@settings(max_examples=examples(40), deadline=None)
@given(content=st.one_of(texts(20, control=True), st.text(max_size=30)))
def test_shape_writes_what_the_template_renders(name: str, content: str) -> None:
    codec = default_codec(name)
    written = shape_of(name).write(content)
    rule = codec._calibration.rules["user"]
    rendered = codec._renderer.tail(rule, [{"role": "user", "content": content}])
    assert written is None or written == rendered


def test_shape_asks_the_template_about_content_that_it_treats_otherwise() -> None:
    shape = shape_of("qwen3")
    assert shape.questions
    assert shape.write("<tool_response>\n21\n</tool_response>") is None
    assert shape.write("plain") is not None


CHATML = (
    "{%% for m in messages %%}<|im_start|>{{ m.role }}\n%s<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)

ASKS = "{{ m.content }}{% if '<a>' in m.content and m.role != 'assistant' %}!{% endif %}"


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content | replace('<a>', 'b') }}",
        "{{ m.content ~ '' if m.content | length < 50 else 'long' }}",
        "{% set c = 'x' ~ m.content %}{{ c }}"
        "{% if '<a>' in c and m.role != 'assistant' %}!{% endif %}",
        "{% macro w(t) %}{{ t }}{% endmacro %}{{ w(m.content) }}",
        "{{ '%s' % m.content }}",
        "{{ ' '.join([m.content]) }}",
        "{{ m.content.split('|')[0] }}",
        "{{ m.content if m.role == 'assistant' else m.content.swapcase().swapcase() }}",
        "{{ m.content }}{{ m.content }}",
    ],
)
def test_shape_is_not_taken_where_it_cannot_be_proven(body: str) -> None:
    template = CHATML % body
    codec = make_codec("qwen2.5", template_kwargs={"chat_template": template})
    assert codec._calibration.rules["user"].shape is None


@pytest.mark.parametrize(
    ("body", "content", "direct"),
    [
        ("{{ m.content | trim }}", "  x\n", True),
        ("{{ m.content | trim }}{% if m.content is string and m.content %}!{% endif %}", "", False),
        (ASKS, "b <a> c", False),
        (ASKS, "b c", True),
        ("{{ m.content }}{% if m.content.rstrip().endswith('?') %}!{% endif %}", "is it? ", False),
        ("{{ m.content | tojson }}", 'say "\u00e9"\n', True),
        ("{% if m.content == 'stop' %}!{% endif %}{{ m.content }}", "stop", False),
    ],
)
def test_shape_follows_strips_questions_and_json(body: str, content: str, direct: bool) -> None:
    template = CHATML % body
    codec = make_codec("qwen2.5", template_kwargs={"chat_template": template})
    rule = codec._calibration.rules["user"]
    assert rule.shape is not None
    written = rule.shape.write(content)
    rendered = codec._renderer.tail(rule, [{"role": "user", "content": content}])
    assert written == (rendered if direct else None)


def test_shape_specs_are_real() -> None:
    assert set(DIRECT) <= set(SPECS)
