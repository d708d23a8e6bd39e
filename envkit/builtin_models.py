"""The models that come with the default engine, by name.

The default engine's package may offer `builtin_model_dir(name, progress)`, which returns the folder
of a bundled model. Names start with "builtin", which alone is the default model.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from envkit.errors import ConfigurationError
from envkit.plugins import load_plugin, plugins

ENGINES: Final = "envkit.engines"
"""Entry-point group of engines."""
DEFAULT_ENGINE: Final = "transformers"
_PREFIX: Final = "builtin"


def is_builtin(model: str | None) -> bool:
    """Return whether a choice of a model means a bundled one; None means the default."""
    return model is None or (model.startswith(_PREFIX) and "/" not in model)


def model_source(model: str | None, progress: Callable[[str], None] | None = None) -> str:
    """Resolve the option `--model` to a folder or hub name.

    Args:
        model: A folder or hub name, returned unchanged, or the name of a model bundled with the
            default engine, such as "builtin-text"; None uses its default.
        progress: Receives lines while such a model is built for the first time.

    Raises:
        ConfigurationError: The default engine's package has no bundled models.
        UnknownNameError: The default engine's package has no such model.
    """
    if model is not None and not is_builtin(model):
        return model
    load_plugin(ENGINES, DEFAULT_ENGINE, kind="engine")
    home = import_module(plugins(ENGINES)[DEFAULT_ENGINE].module)
    offer = getattr(home, "builtin_model_dir", None)
    if offer is None:
        raise ConfigurationError(f"engine {DEFAULT_ENGINE!r} has no built-in model: add --model")
    return str(offer(model or _PREFIX, progress))
