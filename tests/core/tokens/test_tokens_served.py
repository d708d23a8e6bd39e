"""What a server decides about a template, and a codec with other variables."""

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.templates import default_codec, make_codec, render

from envkit.tokens.served import ServedTemplate

USER: Any = [{"role": "user", "content": "Hi"}]


def served(text: str) -> ServedTemplate:
    """Return the decisions about a template that nothing renders."""
    return ServedTemplate(SimpleNamespace(text=text))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages[1:] %}{% for p in m['content']|list %}{% endfor %}{% endfor %}",
         True),
        ("{% set all = messages %}"
         "{% for m in all %}{% for p in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% set c = m.content %}{% for p in c %}{% endfor %}{% endfor %}",
         False),
        ("{% for m in messages %}{% for content in content %}{% endfor %}{% endfor %}", True),
        ("{% macro w(x) %}{% for p in x %}{% endfor %}{% endmacro %}"
         "{% for m in messages %}{{ w(m.content) }}{% endfor %}", True),
        ("{% macro w(x) %}{% for p in x %}{% endfor %}{% endmacro %}"
         "{% for m in messages %}{{ w(x=m.content) }}{% endfor %}", True),
        ("{% macro w(content) %}{% for p in content %}{% endfor %}{% endmacro %}"
         "{% for m in messages %}{{ w(m.role) }}{% endfor %}", False),
        ("{% for a, b in messages %}{% for p in a.content %}{% endfor %}{% endfor %}", False),
    ],
)  # fmt: skip
def test_template_that_loops_over_content_takes_parts(text: str, takes: bool) -> None:
    assert served(text).takes_parts is takes


def test_template_that_rejects_a_late_system_message_leads_with_it() -> None:
    rejects = "{% for m in messages %}{% if m.role == 'system' and loop.index > 1 %}"
    rejects += "{{ raise_exception('no') }}{% endif %}{% endfor %}"
    assert served(rejects).leads_with_system
    assert not served("{% for m in messages %}{{ m.content }}{% endfor %}").leads_with_system
    assert served("{{ strftime_now('%d') }}").leads_with_system  # which vLLM's check lacks
    assert served("{{ messages[9].content + 1 }}").leads_with_system


def test_template_that_names_the_developer_knows_that_role() -> None:
    assert served("{{ 'developer' }}").knows_developer
    assert served('{{ "developer" }}').knows_developer
    assert not served("developer").knows_developer


def test_text_may_stand_for_its_part_where_they_render_alike() -> None:
    assert default_codec("qwen3-vl").served.flattens
    assert not default_codec("qwen3").served.flattens  # it writes no list


def test_effort_without_thinking_is_the_one_that_the_template_heeds() -> None:
    assert default_codec("qwen3").served.effort_without_thinking == "none"
    assert default_codec("qwen2.5").served.effort_without_thinking == "low"


def test_codec_has_other_variables_only_where_the_template_reads_them() -> None:
    codec = make_codec("qwen3")
    assert codec.with_variables({"nobody": 1, "messages": [], "eos_token": "x"}) is codec
    quiet = codec.with_variables({"enable_thinking": False})
    assert quiet is codec.with_variables({"enable_thinking": False, "nobody": 2})
    assert quiet.variables == {"enable_thinking": False}
    assert quiet.with_variables({"enable_thinking": False}) is quiet
    prompt = quiet.decode_all(quiet.encode_prompt(USER).wire_ids)
    assert prompt == render("qwen3", USER) + "<think>\n\n</think>\n\n"
    assert codec.with_variables({"enable_thinking": 0}) is not quiet


def test_codec_forgets_variables_that_were_used_least_lately() -> None:
    codec = make_codec("llama3.1")
    first = codec.with_variables({"date_string": "0"})
    for number in range(1, 8):
        codec.with_variables({"date_string": str(number)})
    assert codec.with_variables({"date_string": "0"}) is first
    codec.with_variables({"date_string": "8"})
    assert codec.with_variables({"date_string": "0"}) is first
    assert codec.with_variables({"date_string": "1"}).variables == {"date_string": "1"}


def test_codec_neutralises_texts_in_variables() -> None:
    codec = make_codec("llama3.1").with_variables({"date_string": "<|eot_id|>"})
    assert codec.variables["date_string"] != "<|eot_id|>"
    assert codec.encode_prompt(USER).wire_ids.count(128009) == render("llama3.1", USER).count(
        "<|eot_id|>"
    )


def test_template_takes_results_where_it_writes_them_after_a_call() -> None:
    assert default_codec("qwen3").served.takes_results
    assert not default_codec("gemma3").served.takes_results
    assert not default_codec("phi3").served.takes_results
