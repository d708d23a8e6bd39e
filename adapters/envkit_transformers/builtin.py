"""Models bundled with envkit, by name.

Two were trained for envkit and are in this package, `models/`: they need no download or conversion.
The third is built on first use from another package's weights; see `text_model`.
"""

from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Final

from envkit.errors import StorageError, UnknownNameError
from envkit_transformers.cache import is_intact
from envkit_transformers.text_model import Progress, text_model_dir


class BuiltinModel(StrEnum):
    """Names of bundled models, in place of a folder."""

    SEEING = "builtin"
    """Uses a simulated desktop, reads codes and plays three worlds; the default. 3.2 M weights."""
    HALF = "builtin-half"
    """An early checkpoint, which reads half of all single digits: for training runs."""
    TEXT = "builtin-text"
    """SmolLM2-135M-Instruct with an untrained vision tower: answers text, understands no image."""


_FOLDERS: Final = {BuiltinModel.SEEING: "seeing", BuiltinModel.HALF: "half"}


def builtin_model_dir(
    name: BuiltinModel | str = BuiltinModel.SEEING, progress: Progress | None = None
) -> Path:
    """Return the folder of a built-in model.

    Args:
        name: The model's name.
        progress: Receives lines while the text model is built for the first time; None writes them
            to the log.

    Raises:
        UnknownNameError: There is no such model.
        MissingDependencyError: The text model is requested, and torch, transformers or its weights
            are missing; the message has the command that installs them.
        StorageError: The shipped files are damaged, or the text model cannot be written.
    """
    names = [str(one) for one in BuiltinModel]
    if name not in names:
        raise UnknownNameError.suggest("built-in model", name, names)
    model = BuiltinModel(name)
    if model is BuiltinModel.TEXT:
        return text_model_dir(progress)
    folder = Path(str(files("envkit_transformers"))) / "models" / _FOLDERS[model]
    if not is_intact(folder, recipe=None):
        raise StorageError(
            f"the files of the built-in model in {folder} must have their original sizes and "
            "SHA-256 hashes, got a missing or changed file; reinstall envkit-rl"
        )
    return folder
