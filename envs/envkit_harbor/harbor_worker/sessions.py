"""The sessions of a worker: start a task's container, run commands in it, grade it, stop it."""

import asyncio
import itertools
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harbor_worker.session import Session


class Sessions:
    """All sessions of this process, by number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._open: dict[int, Session] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    @property
    def version(self) -> str:
        """Harbor's version."""
        return version("harbor")

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request and return its result.

        Raises:
            KeyError: There is no such session.
            Exception: Whatever Harbor or its backend raises.
        """
        if request["do"] == "start":
            return await self._start(request)
        number: int = request["session"]
        async with self._locks[number]:
            session = self._open[number]
            match request["do"]:
                case "run":
                    return await session.run(request["command"], request["seconds"])
                case "grade":
                    return {"rewards": await session.grade()}
                case _:
                    del self._open[number], self._locks[number]
                    await session.stop()
                    return {}

    async def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        folder = self._folder / f"session-{number}"
        folder.mkdir()
        session = Session(request, folder)
        self._open[number], self._locks[number] = session, asyncio.Lock()
        try:
            async with self._locks[number]:
                await session.start()
        except BaseException:
            del self._open[number], self._locks[number]
            await asyncio.shield(session.stop())
            raise
        return {"session": number}

    async def close(self) -> None:
        """Stop every session."""
        found = [self._open.pop(number) for number in list(self._open)]
        await asyncio.gather(*(session.stop() for session in found), return_exceptions=True)
