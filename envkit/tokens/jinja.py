"""Compile chat templates as transformers does (`utils/chat_template_utils.py`).

A template is foreign code, so it runs in jinja2's sandbox. `ChatTemplate` uses the compiled
template only if it renders the same text as the tokenizer itself.
"""

import functools
import json
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_OF_DICT: Final = frozenset(dir(dict))
_OF_STR: Final = frozenset(dir(str))


class _Generation(Extension):
    """`{% generation %}`, which marks the model's text for trainers; renders its content."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in its own scope."""
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
    marks = None if separators is None else tuple(separators)
    return _encoder(ensure_ascii, indent, marks, sort_keys).encode(value)


@functools.lru_cache(maxsize=16)
def _encoder(
    ensure_ascii: bool, indent: int | None, separators: tuple[str, str] | None, sort_keys: bool
) -> json.JSONEncoder:
    """Return an encoder, since making one takes longer than most values."""
    return json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
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
        jinja2.TemplateSyntaxError: The template is not valid.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    added: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": _now}
    environment.globals.update(added)
    _remember_safe_attributes(environment)
    _look_up_keys_directly(environment)
    return environment.from_string(text)


def _remember_safe_attributes(environment: ImmutableSandboxedEnvironment) -> None:
    """Cache the sandbox's attribute check per type and name, the only inputs of its answer."""
    # The check runs at every access and takes a third of the time of a render.
    ask = environment.is_safe_attribute
    known: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(obj: object, attr: str, value: object) -> bool:
        key = type(obj), attr
        answer = known.get(key)
        if answer is None:
            answer = known[key] = ask(obj, attr, value)
        return answer

    environment.is_safe_attribute = is_safe_attribute


def _look_up_keys_directly(environment: ImmutableSandboxedEnvironment) -> None:
    """Answer `m.key` and `m["key"]` at once for a dict or a string without such an attribute.

    jinja2 asks for the attribute first, and an exception per key is a third of the time of a
    render. Some templates walk over the characters of a text as if they were parts (Llama 3.2
    Vision); a string has no keys.
    """
    attribute_of, item_of = environment.getattr, environment.getitem
    undefined = environment.undefined

    def getattr_(obj: Any, attribute: str) -> Any:  # noqa: ANN401  # as jinja2 declares it
        kind: object = type(obj)  # pyright: ignore[reportUnknownVariableType]
        if kind is not dict or attribute in _OF_DICT:
            return attribute_of(obj, attribute)
        return obj[attribute] if attribute in obj else undefined(obj=obj, name=attribute)

    def getitem(obj: Any, argument: Any) -> Any:  # noqa: ANN401  # as jinja2 declares it
        kind: object = type(obj)  # pyright: ignore[reportUnknownVariableType]
        if type(argument) is str:
            if kind is dict and argument not in _OF_DICT:
                return obj[argument] if argument in obj else undefined(obj=obj, name=argument)
            if kind is str and argument not in _OF_STR:
                return undefined(obj=obj, name=argument)
        return item_of(obj, argument)

    environment.getattr, environment.getitem = getattr_, getitem
