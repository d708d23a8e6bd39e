"""The texts of token ids for a page: from a tokenizer, else from the run's own folder."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from envkit.builtin_models import is_builtin, model_source
from envkit.errors import ConfigurationError, EnvkitError, StorageError
from envkit.files import storage_errors
from envkit.rollout.run_settings import RUN_FILE
from envkit.rollout.vocabulary_file import (
    MAX_BYTES,
    MAX_IDS,
    VOCABULARY_FILE,
    TokenText,
    read_texts,
    spelled,
)
from envkit.text import counted

OpenFile = Callable[[str], BinaryIO]
"""Opens a file of a run's folder by name; raises a StorageError caused by an OSError."""
_MAX_SETTINGS_BYTES: Final = 4 << 20
_HERE: Final = frozenset({"name", "model", "policy"})
"""Settings of an engine in the run's own process; another one names a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTexts:
    """The texts that a page has."""

    texts: dict[int, str] | None = None
    """By id; None shows ids."""
    note: str = ""
    """Why a text is missing; empty if the page need not say it."""

    def data(self) -> dict[str, Any]:
        """Return what the front end gets, as JSON data."""
        return {"vocabulary": self.texts, "vocabulary_note": self.note}


def decoded_texts(token_ids: Collection[int], token_text: TokenText) -> TokenTexts:
    """Return the texts by a tokenizer."""
    return TokenTexts(texts={one: spelled(one, token_text) for one in sorted(token_ids)})


def run_texts(token_ids: Collection[int], open_file: OpenFile) -> TokenTexts:
    """Return the texts that a run stored; without its file, those of the model that envkit ships.

    Args:
        token_ids: The ids to show.
        open_file: Opens files of the run's folder.
    """
    if not token_ids:
        return TokenTexts()
    try:
        with open_file(VOCABULARY_FILE) as stream, storage_errors(f"cannot read {VOCABULARY_FILE}"):
            stored = read_texts(stream)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            return TokenTexts(note=f"Tokens are shown as ids: {error}.")
        token_text = _builtin_text(open_file)
        return TokenTexts() if token_text is None else decoded_texts(token_ids, token_text)
    note = ""
    if stored.left_out:
        note = (
            f"{counted(stored.left_out, 'token')} of this run have no stored text: it keeps at "
            f"most {MAX_IDS:,} texts and {MAX_BYTES >> 20} MiB."
        )
    texts = {one: stored.texts[one] for one in sorted(token_ids) if one in stored.texts}
    return TokenTexts(texts=texts, note=note)


def _builtin_text(open_file: OpenFile) -> TokenText | None:
    """Return the tokenizer of the built-in model that the run's settings name; None if not one."""
    try:
        with open_file(RUN_FILE) as stream:
            engine: Any = json.loads(stream.read(_MAX_SETTINGS_BYTES))["settings"]["engine"]
            model = engine["model"]
            is_elsewhere = any(engine[name] is not None for name in engine.keys() - _HERE)
            is_ours = not is_elsewhere and is_builtin(model)
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError):
        return None
    # Nothing else that the settings name is opened: they may come from anybody.
    return _text_of_model(model) if is_ours else None


@cache
def _text_of_model(model: str | None) -> TokenText | None:
    """Return the tokenizer of a built-in model; None if it is not on this machine."""
    from envkit.tokens import vocabulary

    try:
        folder = Path(model_source(model, _refuse_to_build))
        own = vocabulary.read_vocabulary(folder / "tokenizer.json")
    except EnvkitError:
        return None
    return partial(vocabulary.text_of, own)


def _refuse_to_build(line: str) -> None:
    raise ConfigurationError(f"a page does not wait for that: {line}")
