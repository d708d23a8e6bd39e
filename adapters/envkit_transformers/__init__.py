"""The embedded engine: a transformers model in this process, token ids in and token ids out.

Importing this package imports neither torch nor transformers; using one of its names does.
"""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names

if TYPE_CHECKING:
    from envkit_transformers.builtin import BuiltinModel, builtin_model_dir
    from envkit_transformers.engine import TransformersEngine
    from envkit_transformers.loading import create_engine

__all__ = ["BuiltinModel", "TransformersEngine", "builtin_model_dir", "create_engine"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BuiltinModel": ".builtin",
        "TransformersEngine": ".engine",
        "builtin_model_dir": ".builtin",
        "create_engine": ".loading",
    },
    extra="transformers",
)
