"""Seeds: checked where they enter, and derived by hashing, so neighbouring seeds are unrelated.

`seed + index` makes item 1 of seed 0 the same as item 0 of seed 1; a hash of both does not.
"""

import hashlib
from numbers import Integral

from envkit.errors import ConfigurationError, shown


def checked_seed(seed: object, name: str = "seed") -> int:
    """Return a caller's seed as a Python integer, which every record can store.

    Args:
        seed: A Python or NumPy integer of at least 0.
        name: Name of the argument, for the message.

    Raises:
        ConfigurationError: It is something else.
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ConfigurationError(f"{name} must be an integer of at least 0, got {shown(seed)}")
    return int(seed)


def derive_seed(*parts: object) -> int:
    """Return a 31-bit seed that is a pure function of the parts' text forms."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
