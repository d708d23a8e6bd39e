"""How a call ends without a result."""

from enum import StrEnum

from envkit.errors import FaultKind


class Ending(StrEnum):
    """How a call without an answer ended."""

    DIED = "died"
    """The connection ended."""
    HUNG = "hung"
    """No answer in time, and the server answers nothing else either."""
    LATE = "late"
    """No answer in time from a server that still works."""
    HTTP = "http"
    """HTTP failed."""


class NoAnswerError(Exception):
    """A call got no answer."""

    def __init__(self, ending: Ending, why: str, kind: FaultKind = FaultKind.CRASHED) -> None:
        super().__init__(why)
        self.ending = ending
        self.kind = kind
        """If it is a fault."""


class RefusedCallError(Exception):
    """The server answered a call with a protocol error, such as an unknown tool."""
