"""Why a task file cannot be played here."""

from dataclasses import dataclass
from enum import StrEnum


class RefusalKind(StrEnum):
    """What the task needs and the desktop lacks."""

    SCHEMA = "schema"
    """The file is not a task in OSWorld's schema."""
    APPLICATION = "application"
    """A program that is not installed on the desktop."""
    PRIVILEGE = "privilege"
    """Root, a system service or a user account."""
    NETWORK = "network"
    """Live web pages, packages or online accounts."""
    STEP = "step"
    """A setup step of an unknown or unsupported type."""
    INPUT = "input"
    """Recorded input that cannot be translated to key and mouse steps."""
    RESULT = "result"
    """A getter that reads what no file or command of the desktop shows."""
    FUNCTION = "function"
    """An evaluator function, or an option of one, that is not implemented."""
    FILE = "file"
    """An address that the folder of files does not contain."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One reason to refuse a task."""

    kind: RefusalKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}"


class RefusedError(Exception):
    """A task file is refused; `refusal` says why."""

    def __init__(self, kind: RefusalKind, detail: str) -> None:
        super().__init__(f"{kind.value}: {detail}")
        self.refusal = Refusal(kind=kind, detail=detail)
