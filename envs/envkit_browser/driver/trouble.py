"""Browser failures as typed environment faults."""

from enum import StrEnum
from typing import Final

from envkit.errors import EnvFault, FaultKind


class Trouble(StrEnum):
    """What failed."""

    BROWSER_DIED = "browser_died"
    """The process was killed, crashed, or ran out of memory."""
    SOCKET_CLOSED = "socket_closed"
    """The DevTools connection broke; the process is alive."""
    RENDERER_CRASHED = "renderer_crashed"
    """The page's process is gone; the browser is alive."""
    HUNG = "hung"
    """No answer before the deadline: an endless loop in the page, or a stopped process."""
    PAGE_GONE = "page_gone"
    """The page was closed or discarded before this call."""
    START_FAILED = "start_failed"
    """The browser did not start."""
    REFUSED = "refused"
    """The browser answered a command with an error."""
    SCRIPT_FAILED = "script_failed"
    """A script that the driver ran in the page threw an exception."""


_KINDS: Final = {
    Trouble.HUNG: FaultKind.TIMEOUT,
    Trouble.REFUSED: FaultKind.PERMANENT,
    Trouble.SCRIPT_FAILED: FaultKind.PERMANENT,
}


class BrowserFault(EnvFault):
    """A browser, or the connection to it, failed."""

    def __init__(self, message: str, *, trouble: Trouble) -> None:
        super().__init__(message, kind=_KINDS.get(trouble, FaultKind.CRASHED))
        self.trouble = trouble

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the trouble when the fault crosses a process boundary."""
        return _rebuild, (str(self), self.trouble)


def _rebuild(message: str, trouble: Trouble) -> BrowserFault:
    return BrowserFault(message, trouble=trouble)
