"""Which MCP servers an environment uses, and their limits."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

from envkit import ranges
from envkit.errors import ConfigurationError
from envkit.rollout.setting_types import built

FOLDER: Final = "{folder}"
"""Stands for the episode's own folder in a command and its variables."""
ERAS: Final = ("auto", "legacy", "2026-07-28")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{0,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One server: a command that speaks MCP on stdio, or the address of one over HTTP."""

    name: str
    command: tuple[str, ...] = ()
    """The program and its arguments; `{folder}` is the episode's folder, where it also starts."""
    url: str | None = None
    """Address of a streamable HTTP server, in place of a command."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    """Variables of the command, beside PATH, LANG, HOME and TMPDIR; `{folder}` as above."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    """Headers of every HTTP request."""
    tools: tuple[str, ...] | None = None
    """The server's tools to offer; None offers all."""
    prefix: str = ""
    """Put before the names of the tools, for servers that share a name."""
    is_shared: bool = False
    """Whether all episodes of the process use one connection. Otherwise each episode has its own
    process, or its own HTTP session."""
    era: str = "auto"
    """Protocol: "auto" asks the server, "legacy" is the handshake, or a version."""

    def __post_init__(self) -> None:
        """Reject a server that cannot be reached.

        Raises:
            ConfigurationError: It has no command and no address, or both, or a field is invalid.
        """
        where = f"the MCP server {self.name!r}"
        if isinstance(cast(object, self.command), str) or not _are_texts(self.command):
            raise ConfigurationError(
                f"{where}: command must be a list of words, such as ['python', 'server.py'], "
                f"got {self.command!r:.120}"
            )
        if bool(self.command) == (self.url is not None):
            raise ConfigurationError(
                f"{where} needs either command or url, got "
                + ("both" if self.command else "neither")
            )
        if self.url is not None:
            _check_address(where, self.url)
        for values in (self.env, self.headers):
            if not isinstance(cast(object, values), Mapping) or not _are_texts(values.values()):
                raise ConfigurationError(
                    f"{where}: env and headers must map names to texts, got {values!r:.120}"
                )
        if self.tools is not None and not _are_texts(self.tools):
            raise ConfigurationError(f"{where}: tools must be a list of names, got {self.tools!r}")
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"{where}: prefix must have up to 32 of A-Z a-z 0-9 _ . : -, got {self.prefix!r}"
            )
        ranges.one_of(f"era of {where}", self.era, ERAS)

    @property
    def identity(self) -> str:
        """Equal for servers that may share a connection."""
        return repr(sorted(asdict(self).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class McpLimits:
    """Limits on servers. Times are in seconds."""

    connect_timeout_s: float = 30.0
    """From the start of a server to its list of tools."""
    call_timeout_s: float = 30.0
    """A later answer is a tool error."""
    answer_bytes: int = 16 << 20
    """A larger message is dropped; its call is a tool error."""
    characters: int = 20_000
    """Longer text of a result is truncated, with a note to the model."""
    tools: int = 128
    """Maximum tools of one server; more would fill the prompt."""
    max_calls: int = 8
    """Maximum calls run per reply."""

    def __post_init__(self) -> None:
        """Reject limits under which nothing could be called.

        Raises:
            ConfigurationError: One is not positive.
        """
        ranges.positive(**asdict(self))


def read_servers(given: object) -> tuple[McpServer, ...]:
    """Return the servers of an environment's argument `servers`.

    Args:
        given: `{name: {"command": [...]}}`, the form of many clients' `mcpServers` with `args` in
            the command, or a list of `McpServer`.

    Raises:
        ConfigurationError: There is none, or one is invalid.
    """
    if isinstance(given, Mapping):
        entries = cast("Mapping[str, Any]", given)
        servers = tuple(_server(name, entry) for name, entry in entries.items())
    elif isinstance(given, list | tuple):
        servers = tuple(cast("list[Any]", given))
        for one in servers:
            if not isinstance(cast(object, one), McpServer):
                raise ConfigurationError(f"servers must hold McpServer, got {type(one).__name__}")
    else:
        raise ConfigurationError(
            "servers must be {'name': {'command': ['program', 'argument']}} or "
            f"{{'name': {{'url': 'http://...'}}}}, got {given!r:.120}"
        )
    if not servers:
        raise ConfigurationError("servers must name at least one MCP server, got none")
    return servers


def _server(name: str, entry: object) -> McpServer:
    if not isinstance(entry, Mapping):
        raise ConfigurationError(
            f"the MCP server {name!r} must be a mapping with command or url, got {entry!r:.80}"
        )
    fields: dict[str, Any] = {**cast("Mapping[str, Any]", entry), "name": name}
    for key in ("command", "tools"):
        if isinstance(fields.get(key), list):
            fields[key] = tuple(fields[key])
    return built(McpServer, fields, f"the MCP server {name!r}")


def _check_address(where: str, url: object) -> None:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{where}: url must be an address such as 'http://127.0.0.1:8000/mcp', got {url!r:.120}"
        )
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"{where}: url must have no user and no password, because messages show it; send them "
            "in headers"
        )


def _are_texts(values: object) -> bool:
    try:
        return all(isinstance(value, str) for value in cast("list[object]", values))
    except TypeError:
        return False
