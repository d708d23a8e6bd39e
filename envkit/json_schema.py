"""jsonschema without what takes most of its import.

jsonschema looks for optional packages that check formats. One of them, `rfc3987_syntax`, which
Jupyter installs, compiles a grammar when it is imported: a second of CPU time, for the formats
"iri" and "iri-reference" alone. It is imported here when such a format is first checked.
"""

import sys
from functools import cache
from types import ModuleType
from typing import Any, Final

_SLOW: Final = "rfc3987_syntax"


@cache
def jsonschema() -> Any:  # noqa: ANN401  # a module without types
    """Return the jsonschema package, imported on the first call.

    Every check gives the verdict and the message that jsonschema's own import would give.
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
    except ImportError:  # jsonschema checks no such format then
        return True
    return bool(is_valid_syntax(term, text))
