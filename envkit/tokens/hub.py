"""Load from the Hugging Face hub without waiting for a network that is not there."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_PROBE_S: Final = 2.0
"""Seconds for an answer. The hub's own library retries each file for most of a minute."""
_LOG: Final = logging.getLogger(__name__)


@contextmanager
def hub_or_cache(name: str) -> Generator[None]:
    """Let a block load a model from the hub, or from the local cache if the hub does not answer.

    Args:
        name: A hub name; a folder is not looked up.
    """
    if Path(name).is_dir():
        yield
        return
    try:
        from huggingface_hub import constants, get_session
    except ImportError:  # the loader says what is missing
        yield
        return

    settings: Any = constants
    if settings.HF_HUB_OFFLINE:
        yield
        return
    try:
        get_session().head(settings.ENDPOINT, timeout=_PROBE_S)
    except Exception as error:  # noqa: BLE001  # of whichever HTTP library the hub's release uses
        _LOG.warning(
            "%s does not answer (%s): %r can be loaded only from the local cache",
            settings.ENDPOINT,
            error,
            name,
        )
        settings.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        settings.HF_HUB_OFFLINE = False
