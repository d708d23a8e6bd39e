"""Select questions by hops and by split, which a hash of the first page decides."""

import hashlib
from collections.abc import Collection
from typing import Final

from envkit.errors import ConfigurationError

SPLITS: Final = ("train", "test", "all")
TEST_SHARE: Final = 1 / 8
TEST_BELOW: Final = int(TEST_SHARE * 2**64)
"""A question whose first page has a smaller `title_hash` is a test question."""


def title_hash(version: str, title: str) -> int:
    """Return a hash of both below 2^64.

    Args:
        version: Version of the source, which determines the splits.
        title: Title of the page that a question starts from.
    """
    digest = hashlib.sha256(f"{version}\x1f{title}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def checked_hops(hops: Collection[int] | None, largest: int) -> list[int]:
    """Return the wanted numbers of hops in order.

    Args:
        hops: None means all from 1 to `largest`.
        largest: Maximum hops of the source.

    Raises:
        ConfigurationError: The list is empty, or a number is out of range.
    """
    wanted = sorted(range(1, largest + 1) if hops is None else set(hops))
    if not wanted or wanted[0] < 1 or wanted[-1] > largest:
        raise ConfigurationError(f"hops must be some of 1 to {largest}, got {hops!r}")
    return wanted
