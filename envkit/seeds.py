"""Seeds derived by hashing, so neighbouring seeds are unrelated.

`seed + index` makes item 1 of seed 0 the same as item 0 of seed 1; a hash of both does not.
"""

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a 31-bit seed that is a pure function of the parts' text forms."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
