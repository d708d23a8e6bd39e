"""Steps of a task's setup and of the work before grading, as data."""

from dataclasses import dataclass

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
class Press:
    """Press keys as one chord."""

    keys: tuple[str, ...]
    """By their canonical names."""


@dataclass(frozen=True, kw_only=True)
class Write:
    """Type a text."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Click:
    """Click the left button, at the centre of the screen unless the task says where."""

    times: int = 1
    x: int | None = None
    y: int | None = None


@dataclass(frozen=True, kw_only=True)
class Scroll:
    """Turn the wheel; positive is up."""

    clicks: int


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Wait for a time."""

    seconds: float


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


Step = PutFile | Launch | Run | Press | Write | Click | Scroll | Wait | Activate | CloseWindow
