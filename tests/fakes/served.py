"""A folder of runs served by `envkit ui`'s server on a thread, for tests with a real browser."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fakes.slow_ui import slow_server

from envkit.viewer.folder import Folder
from envkit.viewer.library import Library
from envkit.viewer.server import serve

KEY = "a-key-for-these-tests"


class WatchedLibrary(Library):
    """Says when it has read everything."""

    def __init__(self, folder: Folder, *, takes_notes: bool = False) -> None:
        super().__init__(folder, takes_notes=takes_notes)
        self.is_idle: Final = threading.Event()

    def step(self) -> bool:
        """Read the next part."""
        has_more = super().step()
        if not has_more:
            self.is_idle.set()
        return has_more


@contextmanager
def served(root: Path, *, takes_notes: bool = False, is_read: bool = True) -> Generator[str]:
    """Serve a folder; give the address with its key.

    The server has read every run by then, unless `is_read` is false, so it has no news for a page
    until a file changes.
    """
    library = WatchedLibrary(Folder(root), takes_notes=takes_notes)
    ready = threading.Event()
    address: list[str] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    def tell(found: str) -> None:
        address.append(found)
        ready.set()

    async def run() -> None:
        task = asyncio.create_task(serve(library, key=KEY, port=0, on_ready=tell))
        running.append((asyncio.get_running_loop(), task))
        await asyncio.wait([task])

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    with slow_server():
        thread.start()
        is_ready = ready.wait(60)
    try:
        assert is_ready
        assert not is_read or library.is_idle.wait(300)
        yield address[0]
    finally:
        loop, task = running[0]
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
        assert not thread.is_alive()
