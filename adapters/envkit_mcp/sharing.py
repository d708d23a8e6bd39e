"""Servers that all episodes of a process share. Everything runs on the background loop."""

import asyncio
from typing import ClassVar

from envkit_mcp.declaration import McpLimits, McpServer
from envkit_mcp.folder import EpisodeFolder
from envkit_mcp.session import Session


class SharedSession:
    """A connection with several users; it ends with the last one."""

    _known: ClassVar[dict[str, "SharedSession"]] = {}

    def __init__(self, key: str, server: McpServer, limits: McpLimits) -> None:
        self._key, self._server, self._limits = key, server, limits
        self._users = 0
        self._lock = asyncio.Lock()
        self._session: Session | None = None
        self._folder: EpisodeFolder | None = None

    @classmethod
    def take(cls, server: McpServer, limits: McpLimits) -> "SharedSession":
        """Become a user of a server's connection; it opens at the first `session`."""
        key = f"{server.identity} {limits}"
        shared = cls._known.setdefault(key, cls(key, server, limits))
        shared._users += 1
        return shared

    async def session(self) -> Session:
        """Return the connection, which is opened again if it has ended.

        Raises:
            EnvFault: As for `Session.open`.
        """
        async with self._lock:
            if self._session is None or not self._session.is_alive:
                await self._close()
                self._folder = EpisodeFolder()
                self._session = await Session.open(self._server, self._limits, self._folder)
            return self._session

    async def release(self) -> None:
        """Stop being a user."""
        self._users -= 1
        if self._users == 0:
            self._known.pop(self._key, None)
            async with self._lock:
                await self._close()

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()
