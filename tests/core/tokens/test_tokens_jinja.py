"""Templates compiled as transformers compiles them, where envkit takes shortcuts."""

import re

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import render_jinja_template

from envkit.tokens.jinja import compile_template


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
    with pytest.raises(TemplateError) as theirs:
        ImmutableSandboxedEnvironment().from_string(text).render(m={"role": 1})
    with pytest.raises(type(theirs.value), match=re.escape(str(theirs.value))):
        compile_template(text).render(m={"role": 1})
