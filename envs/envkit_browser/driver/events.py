"""Events that a page reports and screenshots do not show."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAX_DIALOGS: Final = 20
"""Maximum dialogs whose text is kept; all are counted."""
_MAX_TEXT: Final = 500


class PageEvent(StrEnum):
    """Kind of event that is counted."""

    DIALOG = "dialog"
    """A JavaScript dialog, which was answered with OK."""
    CONSOLE_ERROR = "console_error"
    """A call of `console.error`."""
    EXCEPTION = "exception"
    """An exception that the page did not catch."""
    BLOCKED = "blocked"
    """A request that would have left the site."""
    BLOCKED_NAVIGATION = "blocked_navigation"
    """A navigation that would have left the site; the page stays."""
    POPUP = "popup"
    """A page opened another page, which is closed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialog:
    """A JavaScript dialog that the page showed; it was answered with OK."""

    kind: str
    """"alert", "confirm", "prompt" or "beforeunload"."""
    text: str
    """At most 500 characters."""


@dataclass(slots=True, kw_only=True)
class PageEvents:
    """What happened in a page since its events were last taken."""

    dialogs: list[Dialog] = field(default_factory=list[Dialog])
    """At most `MAX_DIALOGS`."""
    counts: Counter[PageEvent] = field(default_factory=Counter[PageEvent])

    def add_dialog(self, kind: str, text: str) -> None:
        """Record a dialog."""
        self.counts[PageEvent.DIALOG] += 1
        if len(self.dialogs) < MAX_DIALOGS:
            self.dialogs.append(Dialog(kind=kind, text=text[:_MAX_TEXT]))
