"""What checks may see of a session: names and bytes in its home folder."""

from typing import Final, Protocol

MAX_BYTES: Final = 8 << 20
"""Longest file that a check reads."""
MAX_NAMES: Final = 2_000
"""A folder with as many names counts as flooded: a listing may be cut."""


class Home(Protocol):
    """A home folder that can be read without following links."""

    def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the first bytes of a regular file; None if there is no such file."""
        ...

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Return the names in a folder; none if it does not exist."""
        ...
