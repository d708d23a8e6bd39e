"""Steps of a task's setup and of the work before grading, as data."""

from dataclasses import dataclass

from envkit_actions.action import Action

HOME = "/home/user"
"""The home folder in OSWorld's task files; a session that plays them uses the same."""

LONGEST_WAIT = 60.0
"""Maximum seconds of one step."""


@dataclass(frozen=True, kw_only=True)
class PutFile:
    """Write a file from the folder of files."""

    path: str
    """Relative to the home folder."""
    address: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Start a program without waiting for its end."""

    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run a command to its end."""

    command: tuple[str, ...]
    stdout: str = ""
    """Name under which a `cache_file` getter finds the output; empty if none does."""
    stderr: str = ""
    """The same for the error output."""


@dataclass(frozen=True, kw_only=True)
class Activate:
    """Bring a window to the front."""

    title: str
    strict: bool = False
    """Whether the whole title must match; otherwise a part is enough."""


@dataclass(frozen=True, kw_only=True)
class CloseWindow:
    """Close a window."""

    title: str
    strict: bool = False


Step = PutFile | Launch | Run | Activate | CloseWindow | Action
"""A click without a place is at the centre of the screen, whose size a task file does not know."""
