"""Backends by address, shared by all environments of a process.

Environments with the same address lease one client, so their concurrent queries share batches, a
connection limit and a cache. Releasing the last lease on an event loop closes that loop's
connections; releasing the very last one drops the client.
"""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from envkit.access import bearer
from envkit.errors import ConfigurationError
from envkit_search.cache import CachedBackend
from envkit_search.document import Hit, SearchBackend
from envkit_search.remote import RetrieveClient
from envkit_search.serper import SerperBackend
from envkit_search.tantivy_backend import open_index

SERPER: Final = "serper"
TANTIVY: Final = "tantivy:"
"""Prefix of the address of an index on disk, before its folder."""
SERPER_KEY_VARIABLE: Final = "SERPER_API_KEY"
SERVER_KEY_VARIABLE: Final = "ENVKIT_SEARCH_KEY"
"""The key of a search server; `envkit serve-search` reads it too."""


class _Shared:
    """A backend and its number of leases."""

    def __init__(self, backend: SearchBackend) -> None:
        self.backend = backend
        self.leases = 0
        self.by_loop: Counter[asyncio.AbstractEventLoop] = Counter()
        """Open leases used on each event loop."""


_Name = tuple[str, str | None]
"""An address and the key for it: clients with different keys share nothing."""
_shared: dict[_Name, _Shared] = {}
_lock = threading.Lock()


class Lease:
    """A lease of a backend; `aclose` releases it."""

    def __init__(self, name: _Name, shared: _Shared) -> None:
        self._name, self._shared = name, shared
        self._is_open = True
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def backend(self) -> SearchBackend:
        """The shared backend."""
        return self._shared.backend

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Search the shared backend; see `SearchBackend.search`.

        Raises:
            ConfigurationError: The lease was released.
            EnvFault: The backend failed.
        """
        if not self._is_open:
            raise ConfigurationError(f"the search backend {self._name[0]!r} was closed already")
        self._enter(asyncio.get_running_loop())
        return await self._shared.backend.search(queries, topk=topk)

    async def aclose(self) -> None:
        """Release the lease; safe to call twice."""
        with _lock:
            if not self._is_open:
                return
            self._is_open = False
            self._leave()
            self._shared.leases -= 1
            if not self._shared.leases:
                del _shared[self._name]
            is_last_here = not self._shared.by_loop[asyncio.get_running_loop()]
        if is_last_here:
            await self._shared.backend.aclose()

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            return
        with _lock:
            self._leave()
            self._loop = loop
            self._shared.by_loop[loop] += 1

    def _leave(self) -> None:
        if self._loop is not None:
            self._shared.by_loop[self._loop] -= 1
            if not self._shared.by_loop[self._loop]:
                del self._shared.by_loop[self._loop]


def lease(address: str, key: str | None = None) -> Lease:
    """Return a lease of a backend.

    Args:
        address: "http://..." or "https://...", a server with `POST /retrieve`; "serper", with its
            key in the environment variable SERPER_API_KEY; or "tantivy:" and the folder of an index
            on disk.
        key: Key for the server; None uses the variable ENVKIT_SEARCH_KEY, if set.

    Raises:
        ConfigurationError: The address is none of these, or Serper's key is missing.
        StorageError: There is no index in the folder.
        MissingDependencyError: The index needs tantivy, which is not installed.
    """
    name = check_address(address), key or os.environ.get(SERVER_KEY_VARIABLE) or None
    with _lock:
        if name not in _shared:
            _shared[name] = _Shared(_maker(*name)())
        shared = _shared[name]
        shared.leases += 1
    return Lease(name, shared)


def check_address(address: str) -> str:
    """Return the normalised address.

    Raises:
        ConfigurationError: It is neither an address nor "serper".
    """
    if address == SERPER or address.startswith(("http://", "https://", TANTIVY)):
        return address.rstrip("/")
    raise ConfigurationError(
        "backend must be None, a search backend, 'serper', 'tantivy:FOLDER', or the address of a "
        f"server such as 'http://127.0.0.1:8000', got {address!r}"
    )


def _maker(name: str, server_key: str | None) -> Callable[[], SearchBackend]:
    if name.startswith(TANTIVY):
        return lambda: open_index(name.removeprefix(TANTIVY))
    if name != SERPER:
        return lambda: CachedBackend(RetrieveClient(name, headers=bearer(server_key)))
    key = os.environ.get(SERPER_KEY_VARIABLE, "")
    if not key:
        raise ConfigurationError(
            f"backend 'serper' needs the variable {SERPER_KEY_VARIABLE} in the environment; "
            "it is not set, or is empty"
        )
    return lambda: CachedBackend(SerperBackend(key))
