"""Access control of servers: clients need the key, and other sites' pages are refused.

A server generates a random key unless given one. Clients send it as `Authorization: Bearer KEY`, or
as the password of `Authorization: Basic`, which WebSocket libraries derive from `ws://:KEY@HOST`.
Browsers name the requesting site in `Origin`; requests from another site are refused, with or
without a key. A server without a key also checks `Host`, because a site whose name resolves to this
machine counts as the same site to its visitor's browser (DNS rebinding).
"""

import base64
import binascii
import errno
import hmac
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from envkit.errors import ConfigurationError, ServiceError

_KEY_BYTES: Final = 24
_MIN_KEY_LENGTH: Final = 16
_LAST_PORT: Final = 65_535
_LOCAL_NAME: Final = "localhost"
_LOCAL_ADDRESS: Final = "127.0.0.1"


def check_port(port: int) -> None:
    """Check the port of a server.

    Args:
        port: The port; 0 uses any free one.

    Raises:
        ConfigurationError: The port is out of range.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ConfigurationError(f"port must be 0 to {_LAST_PORT}, got {port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is refused."""

    status: int
    """HTTP status: 401 or 403."""
    reason: str

    @property
    def headers(self) -> dict[str, str]:
        """Extra headers of the response."""
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The access rule of one server."""

    key: str | None = field(repr=False)
    """None admits every client that can reach the server."""
    host: str = _LOCAL_ADDRESS
    """Where the server listens."""
    is_made: bool = False
    """Whether the key was generated here and must be printed."""

    def __post_init__(self) -> None:
        """Reject a key that a header cannot carry or that is easily guessed.

        Raises:
            ConfigurationError: The key is too short, or has characters other than printable ASCII.
        """
        if self.key is None:
            return
        is_plain = self.key.isascii() and self.key.isprintable() and " " not in self.key
        if len(self.key) < _MIN_KEY_LENGTH or not is_plain:
            raise ConfigurationError(
                f"a key must have at least {_MIN_KEY_LENGTH} printable ASCII characters and no "
                f"space, got {len(self.key)} characters"
            )

    def refusal(
        self, headers: Iterable[tuple[str, str]], *, needs_key: bool = True
    ) -> Refusal | None:
        """Return why a request is refused, or None if it is allowed.

        Args:
            headers: Header names and values of the request.
            needs_key: False checks only the origin of the request.
        """
        found: dict[str, list[str]] = {}
        for name, value in headers:
            found.setdefault(name.lower(), []).append(value)
        host = "".join(found.get("host", ())[:1])
        if not all(_is_same_site(origin, host) for origin in found.get("origin", ())):
            return Refusal(status=403, reason="web pages from other sites may not use this server")
        if self.key is None and not self._is_own_name(host):
            return Refusal(
                status=403,
                reason="a server without a key must be addressed by its IP address or localhost",
            )
        given = found.get("authorization", [])
        if self.key is None or not needs_key or any(map(self._accepts, given)):
            return None
        what = "the key is wrong" if given else "the key is missing"
        return Refusal(status=401, reason=f"{what}: send it as 'Authorization: Bearer KEY'")

    def _accepts(self, authorization: str) -> bool:
        scheme, _, value = authorization.partition(" ")
        given = value.strip().encode(errors="replace")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given, (self.key or "").encode())

    def _is_own_name(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is None or name in (_LOCAL_NAME, self.host.lower()) or _is_address(name)


def choose_access(
    key: str | None,
    *,
    host: str,
    variable: str,
    without_key: bool = False,
    allow_remote: bool = False,
) -> Access:
    """Build the access rule from a command's options.

    Args:
        key: None uses the variable's value, or generates a random key if it is not set.
        host: Where the server will listen.
        variable: Name of the environment variable.
        without_key: Admit every client that can reach the server; the variable is ignored.
        allow_remote: Let a server without a key listen beyond this machine.

    Raises:
        ConfigurationError: The options contradict each other, or the key is not valid.
    """
    if not without_key:
        given = key or os.environ.get(variable)
        made = given or secrets.token_urlsafe(_KEY_BYTES)
        return Access(key=made, host=host, is_made=not given)
    if key is not None:
        raise ConfigurationError("--key and --no-key contradict each other: leave one out")
    if not allow_remote and not is_loopback(host):
        raise ConfigurationError(
            f"--no-key admits every client that can reach {host}: drop it, listen on 127.0.0.1, "
            "or add --allow-remote"
        )
    return Access(key=None, host=host)


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return host.lower() == _LOCAL_NAME or ip_address(host).is_loopback
    except ValueError:
        return False


def cannot_listen(host: str, port: int, error: BaseException | None) -> ServiceError:
    """Return the error for an address that a server cannot listen on, with what helps.

    Args:
        host: The address.
        port: The port.
        error: What the system said; None if it is not known.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return ServiceError(
            f"port {port} of {host} is in use: choose another one, or --port 0 for any free one"
        )
    if number in (errno.EACCES, errno.EPERM):
        return ServiceError(
            f"this user may not listen on port {port} of {host}: ports below 1024 are usually "
            "reserved for root; choose another one, or --port 0 for any free one"
        )
    if number == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return ServiceError(f"{host} is not an address of this machine: pass one as --host")
    return ServiceError(f"cannot listen on port {port} of {host}: {error}")


def bearer(key: str | None, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """Add a client's key to its headers; an existing `Authorization` is kept.

    Args:
        key: None or an empty one adds nothing.
        headers: Other headers to send.
    """
    own = dict(headers or {})
    if key and "authorization" not in map(str.lower, own):
        own["Authorization"] = f"Bearer {key}"
    return own


def _is_same_site(origin: str, host: str) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
