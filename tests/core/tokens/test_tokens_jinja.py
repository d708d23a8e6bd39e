"""Templates compiled as transformers compiles them, where envkit takes shortcuts."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from envkit.tokens.jinja import compile_template


@pytest.mark.parametrize(
    "text",
    [
        "{% for c in 'ab' %}{{ c.type }}{{ c['type'] }}{{ c['type'] is defined }}{% endfor %}",
        "{{ 'ab'['upper']() }}{{ 'ab'['x'] | default('none') }}{{ 'ab'[0] }}{{ 'ab'[9] }}",
        "{{ ['\u00e9', {'b': 1, 'a': '<'}] | tojson }}",
        "{{ {'b': [1], 'a': 2} | tojson(indent=2, sort_keys=true) }}",
        "{{ {'b': 1, 'a': 2} | tojson(ensure_ascii=true, separators=[',', ':']) }}",
    ],
)
def test_template_renders_as_transformers_does(text: str) -> None:
    expected, _ = render_jinja_template([[]], chat_template=text)
    assert compile_template(text).render(messages=[]) == expected[0]
