"""Secrets in settings and messages: found by name or by value, stored as references.

A setting is secret if its name says so (`is_secret_name`), at any depth. So is every text that
holds the value of an environment variable with such a name, and the user of an address. What is
written instead is `env:NAME`, a variable that holds the value, else `HIDDEN`.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from envkit.errors import ConfigurationError

HIDDEN: Final = "<secret>"
"""Stands for a secret that no environment variable holds."""
REFERENCE: Final = re.compile(r"env:([A-Za-z_]\w*)", re.ASCII)
"""A whole setting that is read from an environment variable."""
INSIDE: Final = re.compile(r"\{env:([A-Za-z_]\w*)\}", re.ASCII)
"""The same as a part of a setting."""
_LEAST: Final = 8
"""Characters of a value that is looked for in other texts: a shorter one is found by chance."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ALWAYS: Final = frozenset({
    "password", "passwords", "passwd", "passphrase", "secret", "secrets", "authorization",
    "auth", "credential", "credentials", "cookie", "cookies", "apikey", "apikeys", "accesskey",
    "secretkey", "privatekey", "accesstoken", "authtoken", "apitoken", "bearer",
})  # fmt: skip
_OWNERS: Final = frozenset({
    "access", "api", "auth", "bearer", "oauth", "personal", "private", "refresh", "secret",
    "security", "session",
})  # fmt: skip
"""Words that make a plural secret, such as api_keys; max_tokens and state_keys are not."""
_SPECIAL: Final = frozenset({
    "audio", "begin", "bos", "boi", "bot", "cls", "decoder", "end", "eoi", "eom", "eos", "eot",
    "fim", "first", "forced", "image", "last", "mask", "middle", "new", "newline", "next",
    "pad", "per", "prefix", "prev", "previous", "sep", "space", "special", "start", "stop",
    "suffix", "text", "think", "thinking", "tool", "unk", "video", "vision",
})  # fmt: skip
"""Words that make a token a token of text, such as pad_token."""
_FIELDS: Final = frozenset({
    "answer", "cache", "column", "data", "field", "foreign", "group", "hot", "image", "images",
    "index", "input", "label", "message", "messages", "metric", "output", "partition",
    "primary", "prompt", "public", "reference", "response", "reward", "row", "sample", "sort",
    "target", "task",
})  # fmt: skip
"""Words that make a key the name of a field or of data, such as image_key."""
_SCHEMES: Final = re.compile(r"\s*(?:(?:bearer|basic|token)\s*)?", re.IGNORECASE)
_USER: Final = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,31}://)([^/\s?#'\"<>]{1,2048})@")
_QUERY: Final = re.compile(r"([?&;]([\w.-]{1,64})=)([^&;#\s'\"]+)")
_HEADER: Final = re.compile(
    r"(\bauthorization['\"]?\s{0,8}[:=]\s{0,8}['\"]?(?:(?:bearer|basic|token)\s{1,8})?)([^\s'\",}]+)",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(
    r"((?:^|(?<=[\s'\"]))(?:--?([A-Za-z][\w-]{0,63})(?:=|\s+(?!-))|([A-Za-z][\w-]{0,63})(?:=|:\s*)))"
    r"(\"[^\"]*\"|'[^']*'|[^\s'\"]+)"
)
_COMMANDS: Final = frozenset({"command", "commands", "cmd", "argv", "args", "grade"})

_met: Final = set[str]()
"""Secrets of this process that no variable holds."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether the name of a setting or a variable says that its value is a secret.

    The last word decides: `api_key`, `X-Api-Key`, `dbPassword` and `HF_TOKEN` are secret;
    `tokenizer`, `max_tokens`, `pad_token`, `token_ids`, `sort_key` and `image_key` are not.
    """
    words = [word.lower() for word in _WORD.findall(name[-256:])]
    if not words:
        return False
    *before, last = words
    owner = before[-1] if before else ""
    if last == "pwd":
        return bool(before)
    if last in ("tokens", "keys"):
        return owner in _OWNERS
    if last == "token":
        return owner not in _SPECIAL
    if last == "key":
        return owner not in _FIELDS
    return last in _ALWAYS


def stored(data: Any) -> Any:  # noqa: ANN401  # JSON data
    """Return settings as they may be written: each secret is a reference or `HIDDEN`.

    Applying it twice changes nothing. Objects that are not JSON data are returned as they are.
    """
    return _stored(data, "", is_secret=False)


def hidden(text: str) -> str:
    """Return a message or a log line without its secrets.

    Those are as in settings, and the secret settings that this process stored or restored.
    """
    for value in _met:
        if value in text:
            text = text.replace(value, HIDDEN)
    return _clean(text)


def is_hidden(value: object) -> bool:
    """Return whether a stored setting is a secret, or has one as a part."""
    return isinstance(value, str) and (HIDDEN in value or bool(variables([value])))


def unnamed(value: Any) -> Any:  # noqa: ANN401  # a setting
    """Return a stored setting with `HIDDEN` for its references, to compare it with another."""
    if not isinstance(value, str):
        return value
    return HIDDEN if REFERENCE.fullmatch(value) else INSIDE.sub(HIDDEN, value)


def variables(data: Any) -> tuple[str, ...]:  # noqa: ANN401  # JSON data
    """Return the names of the environment variables that settings refer to, sorted."""
    return tuple(sorted({name for text in _texts(data) for name in _names(text)}))


def restored(data: Any) -> Any:  # noqa: ANN401  # JSON data
    """Return settings with the values of the environment variables that they refer to.

    Raises:
        ConfigurationError: A variable is not set.
    """
    found = _restored(data)
    stored(found)  # `hidden` knows its secrets from here on
    return found


def without_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without those that are or contain a secret.

    For datasets, whose readers give their own: an environment reads its key from a variable.
    """
    written = stored(arguments)
    return {
        name: value
        for name, value in arguments.items()
        if written[name] == value and not any(is_hidden(text) for text in _texts(value))
    }


def _restored(data: Any) -> Any:  # noqa: ANN401  # JSON data
    if isinstance(data, Mapping):
        return {key: _restored(value) for key, value in cast("Mapping[Any, Any]", data).items()}
    if isinstance(data, list | tuple):
        values = [_restored(value) for value in cast("Sequence[Any]", data)]
        return values if isinstance(data, list) else tuple(values)
    if not isinstance(data, str):
        return data
    if whole := REFERENCE.fullmatch(data):
        return _value_of(whole[1])
    return INSIDE.sub(lambda found: _value_of(found[1]), data)


def _value_of(variable: str) -> str:
    found = os.environ.get(variable)
    if found is None:
        raise ConfigurationError(
            f"the environment variable {variable}, which env:{variable} refers to, is not set: "
            "set it"
        )
    return found


def _clean(text: str) -> str:
    return _without_user(_with_references(text))


def _names(text: str) -> list[str]:
    whole = REFERENCE.fullmatch(text)
    return [whole[1]] if whole else INSIDE.findall(text)


def _texts(data: Any) -> Iterator[str]:  # noqa: ANN401  # JSON data
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in cast("Mapping[Any, Any]", data).values():
            yield from _texts(value)
    elif isinstance(data, list | tuple):
        for value in cast("Sequence[Any]", data):
            yield from _texts(value)


def _stored(data: Any, name: str, *, is_secret: bool) -> Any:  # noqa: ANN401  # JSON data
    if isinstance(data, Mapping):
        return {
            key: _stored(value, str(key), is_secret=is_secret or is_secret_name(str(key)))
            for key, value in cast("Mapping[Any, Any]", data).items()
        }
    if isinstance(data, list | tuple):
        values = cast("Sequence[Any]", data)
        found = [
            _stored(value, name, is_secret=is_secret or _is_option_value(name, values, place))
            for place, value in enumerate(values)
        ]
        return found if isinstance(data, list) else tuple(found)
    if is_secret:
        return _stored_secret(data)
    if not isinstance(data, str) or REFERENCE.fullmatch(data):
        return data
    text = _clean(data)
    return _without_options(text) if name in _COMMANDS else text


def _is_option_value(name: str, words: Sequence[Any], place: int) -> bool:
    """Whether a word of a command is the value of a secret option, such as --api-key."""
    before = words[place - 1] if place else None
    is_option = isinstance(before, str) and before.startswith("-") and "=" not in before
    return name in _COMMANDS and is_option and is_secret_name(before)


def _stored_secret(value: Any) -> Any:  # noqa: ANN401  # a setting
    if value is None or isinstance(value, bool) or value == "":
        return value
    if not isinstance(value, str):
        return HIDDEN
    if HIDDEN in value or REFERENCE.fullmatch(value):
        return value
    if (name := _variable_with(value)) is not None:
        return f"env:{name}"
    text = _with_references(value)
    rest = INSIDE.sub("", text)
    if rest != text and _SCHEMES.fullmatch(rest):
        return text
    bare = value[cast("re.Match[str]", _SCHEMES.match(value)).end() :].strip()
    if len(bare) >= _LEAST:
        _met.add(bare)
    return HIDDEN


def _variable_with(value: str) -> str | None:
    """Return a variable that holds the value, preferably one whose name says that it is secret."""
    found = [
        (not is_secret_name(name), name)
        for name, held in os.environ.items()
        if held == value
        and (is_secret_name(name) or len(value) >= _LEAST)
        and REFERENCE.fullmatch(f"env:{name}")
    ]
    return min(found)[1] if found else None


def _with_references(text: str) -> str:
    """Replace the values of secret variables by references, the longest first."""
    if len(text) < _LEAST:
        return text
    held = [
        (value, name)
        for name, value in os.environ.items()
        if len(value) >= _LEAST and is_secret_name(name) and value in text
    ]
    for value, name in sorted(held, key=lambda one: (-len(one[0]), one[1])):
        text = f"env:{name}" if text == value else text.replace(value, f"{{env:{name}}}")
    return text


def _without_user(text: str) -> str:
    """Replace the users of addresses, secrets in their queries, and keys in headers."""
    if "://" in text:
        text = _USER.sub(lambda found: f"{found[1]}{_part(found[2])}@", text)
        text = _QUERY.sub(
            lambda found: found[1] + (_part(found[3]) if is_secret_name(found[2]) else found[3]),
            text,
        )
    return _HEADER.sub(lambda found: found[1] + _part(found[2]), text)


def _without_options(text: str) -> str:
    """Replace the values of secret options and variables of a command."""
    written: list[str] = []
    place = 0
    while (found := _OPTION.search(text, place)) is not None:
        is_secret = is_secret_name(found[2] or found[3])
        written += [text[place : found.end(1)], _part(found[4]) if is_secret else ""]
        place = found.end() if is_secret else found.end(1)
    return "".join([*written, text[place:]])


def _part(value: str) -> str:
    """Return what is written for a secret part of a text."""
    if HIDDEN in value or INSIDE.search(value) or value.startswith("$"):
        return value
    name = _variable_with(value)
    return HIDDEN if name is None else f"{{env:{name}}}"
