"""Fast import of jsonschema.

jsonschema imports optional packages that check formats. One of them, `rfc3987_syntax`, which
Jupyter installs, compiles a grammar on import. This takes a second of CPU time and is only needed
for the formats "iri" and "iri-reference", so it is imported when such a format is first checked.
"""

import sys
from functools import cache
from types import ModuleType
from typing import Any, Final

_SLOW: Final = "rfc3987_syntax"


@cache
def jsonschema() -> Any:  # noqa: ANN401  # a module without types
    """Return the jsonschema package, imported on the first call.

    Every check gives the same result and message as with jsonschema's own import.
    """
    if _SLOW in sys.modules or "jsonschema" in sys.modules:
        import jsonschema

        return jsonschema
    stand_in: Any = ModuleType(_SLOW)
    stand_in.is_valid_syntax = _is_valid_syntax
    sys.modules[_SLOW] = stand_in
    try:
        import jsonschema
    finally:
        sys.modules.pop(_SLOW, None)
    return jsonschema


def _is_valid_syntax(term: str, text: str) -> bool:
    try:
        from rfc3987_syntax import is_valid_syntax
    except ImportError:  # jsonschema then skips these formats
        return True
    return bool(is_valid_syntax(term, text))
