"""Secrets are found by name, by value and in addresses; other settings stay as they are."""

import json
import os
import string
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.rollout import RolloutConfig
from envkit.rollout.engine import Sampling
from envkit.secrets import (
    HIDDEN,
    hidden,
    is_hidden,
    is_secret_name,
    restored,
    stored,
    variables,
    without_secrets,
)

SECRET = [
    "token", "password", "passwd", "secret", "authorization", "Authorization", "api_key", "apiKey",
    "api-key", "X-Api-Key", "APIKey", "APIKEY", "key", "KEY", "backend_key", "openai_key",
    "HF_TOKEN", "hf_token", "access_token", "auth_tokens", "api_keys", "AWS_SECRET_ACCESS_KEY",
    "client_secret", "dbPassword", "db_pwd", "Proxy-Authorization", "Cookie", "credentials",
    "token2", "API_KEY_2", "GITHUB_TOKEN", "bearer", "private_key", "passphrase",
]  # fmt: skip
PLAIN = [
    "tokenizer", "max_tokens", "max_new_tokens", "max_tokens_per_turn", "token_ids", "stop_token",
    "pad_token", "eos_token", "image_token", "stop_token_ids", "tokens", "keys", "keyboard",
    "monkey", "sort_key", "image_key", "prompt_key", "public_key", "state_keys", "key_env",
    "secretary", "author", "authors", "password_rules", "tokens_per_second", "price_per_token",
    "key_format", "PWD", "OLDPWD", "", "_", "naïve", "temperature", "sanity_share", "turns",
]  # fmt: skip
KEY = "sk-live-0123456789abcdef"


@pytest.fixture(autouse=True)
def _known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if is_secret_name(name)]:
        monkeypatch.delenv(name)
    # The process remembers secrets, and properties draw the same words as secrets and as texts.
    monkeypatch.setattr("envkit.secrets._met", set[str]())


@pytest.mark.parametrize("name", SECRET)
def test_secret_names_are_found(name: str) -> None:
    assert is_secret_name(name)
    assert stored({"a": [{name: KEY}]}) == {"a": [{name: HIDDEN}]}


@pytest.mark.parametrize("name", PLAIN)
def test_other_names_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)
    assert stored({name: "value"}) == {name: "value"}


def test_every_setting_of_a_rollout_is_plain() -> None:
    config = RolloutConfig().to_mapping()
    assert stored(config) == config
    sampling = {one.name: "x" for one in fields(Sampling)}
    assert stored(sampling) == sampling
    assert asdict(Sampling()) == stored(asdict(Sampling()))


def test_value_of_a_variable_is_stored_as_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    given = {
        "key": KEY,
        "headers": {"Authorization": f"Bearer {KEY}", "X-Other": "1"},
        "command": f"python agent.py --api-key {KEY}",
        "note": f"before {KEY} after",
        "base_url": f"http://me:{KEY}@host/v1?api_key={KEY}",
    }
    written = stored(given)
    assert KEY not in json.dumps(written)
    assert HIDDEN not in json.dumps({k: v for k, v in written.items() if k != "base_url"})
    assert written["key"] == "env:SERVER_KEY"
    assert variables(written) == ("SERVER_KEY",)
    assert restored(written) == given
    monkeypatch.delenv("SERVER_KEY")
    with pytest.raises(ConfigurationError, match="SERVER_KEY"):
        restored(written)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"url": "http://u:p@h/x"}, {"url": f"http://{HIDDEN}@h/x"}),
        ({"url": "https://tok@h"}, {"url": f"https://{HIDDEN}@h"}),
        ({"urls": "http://a:1,ws://u:p@h:2"}, {"urls": f"http://a:1,ws://{HIDDEN}@h:2"}),
        ({"url": "http://h/?token=abc&n=1"}, {"url": f"http://h/?token={HIDDEN}&n=1"}),
        ({"command": "a --api-key abc -v"}, {"command": f"a --api-key {HIDDEN} -v"}),
        ({"cmd": "A_TOKEN=abc a --max-tokens 5"}, {"cmd": f"A_TOKEN={HIDDEN} a --max-tokens 5"}),
        ({"command": ["a", "--token", "abc"]}, {"command": ["a", "--token", HIDDEN]}),
        ({"command": ["a", "--token=abc", "b"]}, {"command": ["a", f"--token={HIDDEN}", "b"]}),
        ({"command": "a --key $MY_KEY"}, None),
        ({"cmd": "a --key 'b c' --no-key --key"}, {"cmd": f"a --key {HIDDEN} --no-key --key"}),
        ({"cmd": "curl -H 'X-Api-Key: abc' u"}, {"cmd": f"curl -H 'X-Api-Key: {HIDDEN}' u"}),
        ({"command": "sort --key 2 | wc -l"}, {"command": f"sort --key {HIDDEN} | wc -l"}),
        ({"password": 12345}, {"password": HIDDEN}),
        ({"secret": {"a": ["b", None, True, ""]}}, {"secret": {"a": [HIDDEN, None, True, ""]}}),
        ({"instructions": "press the key x, not --key y"}, None),
        ({"mail": "me@host.example", "path": "a://b", "ratio": "3:1@2"}, None),
        ({"key": "env:A", "b": "env:B"}, None),
    ],
)  # fmt: skip
def test_stored_form(given: dict[str, Any], written: dict[str, Any] | None) -> None:
    assert stored(given) == (given if written is None else written)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.just(KEY),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(SECRET + PLAIN) | st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(data=JSON)
def test_storing_twice_changes_nothing(data: Any) -> None:
    once = stored(data)
    assert stored(once) == once


@given(data=JSON, name=st.sampled_from(SECRET), path=st.lists(st.sampled_from(PLAIN), max_size=4))
def test_a_secret_at_any_depth_is_never_written(data: Any, name: str, path: list[str]) -> None:
    value: Any = {name: KEY, "beside": data}
    for part in path:
        value = {part: [value]}
    written = stored(value)
    for part in reversed(path):
        written = written[part][0]
    assert written[name] == HIDDEN
    assert written["beside"] == stored(data)


WORD = st.text(string.ascii_letters, min_size=1, max_size=8)


@given(data=st.dictionaries(st.sampled_from(PLAIN), WORD | st.integers() | st.lists(WORD)))
def test_plain_settings_are_never_changed(data: dict[str, Any]) -> None:
    assert stored(data) == data
    assert without_secrets(data) == data


@given(user=st.text(string.ascii_letters + ":.-_%!", min_size=1, max_size=20), rest=WORD)
def test_user_of_an_address_is_never_shown(user: str, rest: str) -> None:
    shown = hidden(f"cannot reach http://{user}@host/{rest}: refused")
    assert shown == f"cannot reach http://{HIDDEN}@host/{rest}: refused"


@given(text=st.text())
def test_messages_without_secrets_are_unchanged(text: str) -> None:
    if "://" not in text and "authorization" not in text.lower():
        assert hidden(text) == text


def test_long_hostile_text_takes_linear_time() -> None:
    for unit in (
        "http://a",
        "a://",
        "authorization: ",
        "--key ",
        "--key x ",
        "?token=",
        "a@",
        "--",
    ):
        text = unit * (100_000 // len(unit))
        hidden(text)
        stored({"command": text})


def test_secrets_are_left_out_of_rows() -> None:
    given_arguments = {"key": KEY, "headers": {"Authorization": "x"}, "turns": 3, "b": "env:HOME"}
    assert without_secrets(given_arguments) == {"turns": 3}
    assert is_hidden(HIDDEN)
    assert not is_hidden("plain")
