"""Optional packages of this plugin: check for them, and silence their output."""

import importlib.util
from collections.abc import Generator
from contextlib import contextmanager

from envkit.errors import MissingDependencyError


def require_hf() -> None:
    """Check that torch and transformers are installed, without importing them.

    Raises:
        MissingDependencyError: One is missing; the message has the command that installs it.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError.for_extra("the embedded engine", package, "transformers")


@contextmanager
def quiet_transformers() -> Generator[None]:
    """Turn off transformers' progress bars."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
