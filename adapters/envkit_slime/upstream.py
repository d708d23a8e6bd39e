"""Import slime on first use, never by `import envkit_slime`.

slime is not on a package index; it is installed from its repository, or put on PYTHONPATH.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from envkit.errors import MissingDependencyError

_ROOTS: Final = ("slime", "miles")
_OBSERVABILITY: Final = "slime.observability"


def require(module: str) -> Any:  # noqa: ANN401  # a module of an optional dependency
    """Import a module of slime or miles.

    `slime.observability` was part of `slime.utils` before commit 624b824.

    Raises:
        MissingDependencyError: The trainer is not importable. Missing dependencies of the trainer
            are raised unchanged.
    """
    try:
        if module.startswith(_OBSERVABILITY) and find_spec(_OBSERVABILITY) is None:
            module = module.replace(_OBSERVABILITY, "slime.utils")
        return import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] not in _ROOTS:
            raise
        raise MissingDependencyError(
            f"this adapter runs inside {root}, which is not importable here ({error}). Install it "
            f"with: pip install git+https://github.com/{_HOMES[root]}, or put a checkout of it on "
            "PYTHONPATH"
        ) from error


_HOMES: Final = {"slime": "THUDM/slime", "miles": "radixark/miles"}
