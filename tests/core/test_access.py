"""Who is let into a server: by key, by origin, by host."""

import base64
import errno
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.access import (
    Access,
    bearer,
    cannot_listen,
    check_port,
    choose_access,
    is_loopback,
)
from envkit.errors import ConfigurationError

KEY = "correct-horse-battery"
HOST = ("Host", "127.0.0.1:8000")


def status(access: Access, *headers: tuple[str, str], needs_key: bool = True) -> int:
    """Return the status of the refusal, 200 without one."""
    refusal = access.refusal(headers, needs_key=needs_key)
    return 200 if refusal is None else refusal.status


def basic(user: str, password: str) -> tuple[str, str]:
    return "authorization", f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def test_key_is_taken_as_bearer_or_as_basic_password() -> None:
    access = Access(key=KEY)
    assert status(access, HOST, ("Authorization", f"Bearer {KEY}")) == 200
    assert status(access, HOST, ("authorization", f"bearer  {KEY} ")) == 200
    assert status(access, HOST, basic("", KEY)) == status(access, HOST, basic("me", KEY)) == 200
    assert status(access, *bearer(KEY).items()) == 200


@pytest.mark.parametrize(
    "value",
    [
        "",
        KEY,
        "Bearer",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Token {KEY}",
        "Basic ###",
        f"Basic {KEY}",
        basic(KEY, "wrong")[1],
        "Bearer \udcff\udcfe",
    ],
)
def test_wrong_key_is_refused(value: str) -> None:
    refusal = Access(key=KEY).refusal([HOST, ("Authorization", value)])
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (401, {"WWW-Authenticate": "Bearer"})
    assert KEY not in refusal.reason


def test_missing_key_is_refused_except_where_none_is_needed() -> None:
    assert status(Access(key=KEY), HOST) == 401
    assert status(Access(key=KEY), HOST, needs_key=False) == 200


@given(st.text(), st.text())
def test_no_header_value_raises_or_passes(authorization: str, origin: str) -> None:
    headers = (HOST, ("Authorization", authorization), ("Origin", origin))
    assert status(Access(key=KEY), *headers) in (401, 403)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:8000", 200),
        ("https://127.0.0.1:8000", 200),
        ("http://127.0.0.1:8001", 403),
        ("http://127.0.0.1", 403),
        ("http://evil.example", 403),
        ("http://127.0.0.1:8000.evil.example", 403),
        ("http://127.0.0.1:8000@evil.example", 403),
        ("http://[", 403),
        ("null", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("key", [KEY, None])
def test_page_of_another_site_is_refused_even_with_the_key(
    key: str | None, origin: str, expected: int
) -> None:
    access = Access(key=key)
    assert status(access, HOST, ("Origin", origin), *bearer(key).items()) == expected
    twice = (("Origin", origin), ("Origin", "http://evil.example"))
    assert status(access, HOST, *twice, *bearer(key).items()) == 403


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("box.lan:8000", 200),
        ("evil.example:8000", 403),
        ("[", 403),
    ],
)
def test_server_without_a_key_checks_the_name_it_is_addressed_by(host: str, expected: int) -> None:
    access = Access(key=None, host="box.lan")
    assert status(access, ("Host", host)) == expected
    page = ("Origin", f"http://{host}")  # same site for the browser, after DNS rebinding
    assert status(access, ("Host", host), page) == expected


def test_key_is_random_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    made = {choose_access(None, host="0.0.0.0", variable="SOME_KEY").key for _ in range(8)}
    assert len(made) == 8
    assert min(len(key or "") for key in made) >= 32
    monkeypatch.setenv("SOME_KEY", "k" * 20)
    assert choose_access(None, host="0.0.0.0", variable="SOME_KEY").key == "k" * 20
    assert choose_access(KEY, host="0.0.0.0", variable="SOME_KEY").key == KEY
    open_access = choose_access(None, host="::1", variable="SOME_KEY", without_key=True)
    assert open_access.key is None


@pytest.mark.parametrize(
    "key", ["short", "k" * 15, "with a space in between", "k" * 20 + "\n", "ü" * 20]
)
def test_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 16 printable") as caught:
        choose_access(key, host="localhost", variable="SOME_KEY")
    assert key not in str(caught.value)
    assert KEY not in repr(Access(key=KEY))


def test_server_without_a_key_stays_on_this_machine_unless_it_is_allowed_out() -> None:
    with pytest.raises(ConfigurationError, match="--allow-remote"):
        choose_access(None, host="0.0.0.0", variable="SOME_KEY", without_key=True)
    with pytest.raises(ConfigurationError, match="contradict"):
        choose_access(KEY, host="::1", variable="SOME_KEY", without_key=True)
    remote = choose_access(
        None, host="0.0.0.0", variable="SOME_KEY", without_key=True, allow_remote=True
    )
    assert remote.key is None


def test_loopback_addresses_are_recognised() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")))


def test_client_keeps_its_own_authorization() -> None:
    assert bearer(None) == bearer("") == {}
    own = {"authorization": "Basic abc", "X-Trace": "1"}
    assert bearer(KEY, own) == own
    assert bearer(KEY, {"X-Trace": "1"})["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_out_of_range_is_a_configuration_error(port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"port must be 0 to 65535, got {port}"):
        check_port(port)


def test_address_that_cannot_be_listened_on_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            socket.create_server(("127.0.0.1", port))
        assert "is in use: choose another" in str(cannot_listen("127.0.0.1", port, caught.value))
    with pytest.raises(OSError, match="assign") as caught:
        socket.create_server(("203.0.113.7", 0))
    assert "not an address of this machine" in str(cannot_listen("203.0.113.7", 0, caught.value))
    with pytest.raises(socket.gaierror) as unknown:
        socket.getaddrinfo("no.such.host.invalid", 0)
    assert "not an address of this machine" in str(cannot_listen("no", 0, unknown.value))
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert "reserved for root" in str(cannot_listen("127.0.0.1", 80, refused))
    assert "in use" not in str(cannot_listen("127.0.0.1", 80, OSError(errno.ENOBUFS, "No buffer")))
