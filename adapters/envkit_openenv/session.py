"""One session of an OpenEnv server: a WebSocket that lives as long as an episode.

How failures map to faults:

| failure | fault |
| --- | --- |
| connection refused or reset before the session began, 429 and 5xx at the handshake | TRANSIENT |
| 200 at the handshake or a schema that is not JSON, such as a proxy's page | TRANSIENT |
| any other status at the handshake | PERMANENT |
| the server is full | TRANSIENT |
| no answer in time | TIMEOUT; the connection is closed, so a late answer cannot be mistaken |
| connection lost in the session | CRASHED: the server ends the environment with it |
| bytes, invalid JSON, another shape, too large a message | PERMANENT |

Nothing is sent twice here. The caller may open and reset another session, because the server ends
abandoned ones.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import aiohttp

from envkit import fast_json, ranges
from envkit.errors import EnvFault, EnvkitError, FaultKind
from envkit.http_pool import HttpPool, read_capped
from envkit.rollout.setting_types import check_fields
from envkit_openenv.protocol import read_message

KEY_VARIABLE: Final = "ENVKIT_OPENENV_KEY"
"""Variable with the server's key; `envkit serve-openenv` reads it too."""
_SHOWN: Final = 300
_MAX_SCHEMA_BYTES: Final = 1 << 20
_CLOSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits on a server. Times are in seconds."""

    connect_timeout_s: float = 10.0
    reset_timeout_s: float = 120.0
    """Time of a reset, including connection attempts and waits."""
    step_timeout_s: float = 120.0
    open_attempts: int = 5
    """Attempts to open and reset a session before its fault is raised."""
    max_message_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        """Reject limits under which nothing could be asked.

        Raises:
            ConfigurationError: One is not positive.
        """
        check_fields(self, "limits")
        ranges.positive(**asdict(self))


class Connection:
    """A connection; create it with `open`."""

    def __init__(
        self,
        address: str,
        client: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
    ) -> None:
        self._address, self._client, self._socket = address, client, socket

    @classmethod
    async def open(
        cls, address: str, *, limits: SessionLimits, headers: Mapping[str, str]
    ) -> "Connection":
        """Connect to a server.

        Args:
            address: `http://` or `https://`, without `/ws`.
            limits: Limits on time and size.
            headers: Headers of the handshake; their values never appear in messages.

        Raises:
            EnvFault: It cannot be reached, or rejects the connection.
        """
        client = HttpPool(headers=headers).session()
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                socket = await client.ws_connect(
                    f"{address}/ws", max_msg_size=limits.max_message_bytes, autoping=True
                )
        except BaseException as error:
            await client.close()
            raise _opening_fault(address, error, limits.connect_timeout_s) from error
        return cls(address, client, socket)

    async def ask(self, message: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Send a message and return the data of its answer. After a fault the session is closed.

        Raises:
            InvalidAction: The server rejected the action's form; the session continues.
            EnvFault: The table in the module's docstring says how.
        """
        try:
            async with asyncio.timeout(timeout_s):
                raw = await self._exchange(json.dumps(message))
                if fast_json.is_quick(raw):
                    return read_message(raw)
                return await asyncio.to_thread(read_message, raw)
        except TimeoutError as error:
            await self.close()
            what = f"gave no answer to {message['type']!r} within {timeout_s:g} s"
            raise _fault(self._address, what, FaultKind.TIMEOUT) from error
        except (EnvkitError, asyncio.CancelledError):
            await self.close()
            raise

    async def close(self) -> None:
        """End the session; safe to call twice."""
        if self._client.closed:
            return
        try:
            # If this fails, the server notices the closed connection.
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(_CLOSE_S):
                    if not self._socket.closed:
                        await self._socket.send_str('{"type": "close"}')
                        await self._socket.close()
        finally:
            await self._client.close()

    async def _exchange(self, text: str) -> str:
        # A full server sends an error and hangs up: its last message may be there.
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.send_str(text)
        received = await self._socket.receive()
        match received.type:
            case aiohttp.WSMsgType.TEXT:
                return str(received.data)
            case aiohttp.WSMsgType.BINARY:
                raise _fault(self._address, "answered with bytes", FaultKind.PERMANENT)
            case aiohttp.WSMsgType.ERROR:
                reason = str(received.data)[:_SHOWN]
                code = getattr(received.data, "code", None)
                is_large = code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
                kind = FaultKind.PERMANENT if is_large else FaultKind.CRASHED
                raise _fault(self._address, f"dropped the session: {reason}", kind)
            case _:
                said = f": {received.extra}"[:_SHOWN] if received.extra else ""
                reason = f"code {self._socket.close_code}{said}"
                raise _fault(self._address, f"closed the session ({reason})", FaultKind.CRASHED)


async def fetch_schema(
    address: str, *, limits: SessionLimits, headers: Mapping[str, str]
) -> dict[str, Any]:
    """Return the JSON schema of a server's actions and observations, from `GET /schema`.

    Raises:
        EnvFault: It cannot be reached, rejects the request, or returns something else.
    """
    async with HttpPool(headers=headers).session() as client:
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                async with client.get(f"{address}/schema", allow_redirects=False) as response:
                    response.raise_for_status()
                    body = await read_capped(response, _MAX_SCHEMA_BYTES)
            found: Any = None if body is None else json.loads(body)
        except (ValueError, RecursionError) as error:
            what = "answered GET /schema with something that is not valid JSON"
            raise _fault(address, what, FaultKind.TRANSIENT) from error
        except BaseException as error:
            raise _opening_fault(address, error, limits.connect_timeout_s) from error
    if body is None:
        what = f"answered GET /schema with more than {_MAX_SCHEMA_BYTES >> 20} MiB"
        raise _fault(address, what, FaultKind.PERMANENT)
    if not isinstance(found, dict) or not isinstance(found.get("action"), dict):
        what = f"must answer GET /schema with an object 'action', got {found!r:.200}"
        raise _fault(address, what, FaultKind.PERMANENT)
    return found


def _opening_fault(address: str, error: BaseException, timeout_s: float) -> BaseException:
    """Return the fault of a failed connection; other errors are returned unchanged."""
    if isinstance(error, aiohttp.ClientResponseError):  # also a handshake error
        is_passing = error.status >= 500 or error.status in (200, 429)  # 200: a proxy's page
        kind = FaultKind.TRANSIENT if is_passing else FaultKind.PERMANENT
        hint = ". Is the key right?" if error.status in (401, 403) else ""
        return _fault(address, f"answered {error.status}: {error.message[:_SHOWN]!r}{hint}", kind)
    if isinstance(error, TimeoutError):
        what = f"did not answer within {timeout_s:g} s"
        return _fault(address, what, FaultKind.TIMEOUT)
    if isinstance(error, aiohttp.ClientError | OSError):
        reason = str(error) or type(error).__name__
        return _fault(address, f"cannot be reached: {reason[:_SHOWN]}", FaultKind.TRANSIENT)
    return error


def _fault(address: str, what: str, kind: FaultKind) -> EnvFault:
    return EnvFault(f"the OpenEnv server at {address} {what}", kind=kind)
