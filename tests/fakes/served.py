"""A folder of runs served by `envkit ui`'s server on a thread, for tests with a real browser."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from envkit.viewer.folder import Folder
from envkit.viewer.library import Library
from envkit.viewer.server import serve

KEY = "a-key-for-these-tests"


@contextmanager
def served(root: Path) -> Generator[str]:
    """Serve a folder; give the address with its key."""
    ready = threading.Event()
    address: list[str] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    def tell(found: str) -> None:
        address.append(found)
        ready.set()

    async def run() -> None:
        task = asyncio.create_task(serve(Library(Folder(root)), key=KEY, port=0, on_ready=tell))
        running.append((asyncio.get_running_loop(), task))
        await asyncio.wait([task])

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield address[0]
    finally:
        loop, task = running[0]
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)
        assert not thread.is_alive()
