"""Compiling chat templates as transformers does (`utils/chat_template_utils.py`).

A template is foreign code, so it runs in jinja2's sandbox. `ChatTemplate` compares the result with
the tokenizer's own rendering before it is used.
"""

import functools
import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """`{% generation %}`: marks what the model says, for trainers; renders what is inside."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,  # noqa: ANN401  # JSON data
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without HTML escapes, unlike jinja2's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


@functools.lru_cache(maxsize=64)
def compile_template(text: str) -> Template:
    """Compile a chat template.

    Args:
        text: The template.

    Raises:
        jinja2.TemplateSyntaxError: It is not valid.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    added: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": _now}
    environment.globals.update(added)
    _remember_safe_attributes(environment)
    return environment.from_string(text)


def _remember_safe_attributes(environment: ImmutableSandboxedEnvironment) -> None:
    """Ask the sandbox once per type and name: it looks at nothing else, and asks at every access.

    That is a third of a render's time.
    """
    ask = environment.is_safe_attribute
    known: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(obj: object, attr: str, value: object) -> bool:
        key = type(obj), attr
        answer = known.get(key)
        if answer is None:
            answer = known[key] = ask(obj, attr, value)
        return answer

    environment.is_safe_attribute = is_safe_attribute
