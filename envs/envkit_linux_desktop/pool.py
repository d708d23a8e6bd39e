"""A pool of sessions that start before they are needed. Each session serves one task."""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from envkit.closing import Closing
from envkit.errors import EnvkitError
from envkit_linux_desktop.desk import Limits
from envkit_linux_desktop.session import Session, start_session


class Pool(Closing):
    """Keeps sessions of one kind ready; a thread starts the next ones, one at a time."""

    def __init__(self, width: int, height: int, *, size: int, limits: Limits) -> None:
        """Create an empty pool; the first `take` starts sessions.

        Args:
            width: Screen width in pixels.
            height: Screen height in pixels.
            size: Sessions to keep ready; 0 starts each on demand.
            limits: Resource limits of each session.
        """
        self._shape, self._size, self._limits = (width, height), size, limits
        self._lock = threading.Lock()
        self._coming: list[Future[Session]] = []
        self._starter = ThreadPoolExecutor(1, "envkit-desktops") if size else None
        self._process = os.getpid()

    def take(self) -> Session:
        """Return a ready session and start the next one; the caller closes it.

        Raises:
            EnvFault: No session starts.
            MissingDependencyError: A program or a package is missing.
        """
        session = self._ready()
        self._order()
        return session or self._start()

    def close(self) -> None:
        """Close the unused sessions."""
        if self._starter is None or self._process != os.getpid():  # a fork owns none of them
            return
        self._starter.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            coming, self._coming = self._coming, []
        for one in coming:
            one.add_done_callback(_discard)

    def _ready(self) -> Session | None:
        with self._lock:
            coming = self._coming.pop(0) if self._coming else None
        if coming is None:
            return None
        with suppress(EnvkitError):
            session = coming.result()
            try:
                session.check()
            except EnvkitError:
                session.close()
                raise
            return session
        return None

    def _order(self) -> None:
        if self._starter is None:
            return
        with self._lock, suppress(RuntimeError):  # RuntimeError: closed meanwhile
            while len(self._coming) < self._size:
                self._coming.append(self._starter.submit(self._start))

    def _start(self) -> Session:
        return start_session(*self._shape, limits=self._limits)


def _discard(coming: "Future[Session]") -> None:
    if not coming.cancelled() and coming.exception() is None:
        coming.result().close()
