"""The embedded engine: a transformers model in this process, token ids in and token ids out.

Importing this package imports neither torch nor transformers; using one of its names does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envkit_transformers.builtin import BuiltinModel, builtin_model_dir
    from envkit_transformers.engine import TransformersEngine
    from envkit_transformers.loading import create_engine

__all__ = ["BuiltinModel", "TransformersEngine", "builtin_model_dir", "create_engine"]

_HOMES = {
    "BuiltinModel": "envkit_transformers.builtin",
    "TransformersEngine": "envkit_transformers.engine",
    "builtin_model_dir": "envkit_transformers.builtin",
    "create_engine": "envkit_transformers.loading",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # whatever the name stands for
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
