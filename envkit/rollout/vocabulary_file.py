"""`vocabulary.json`: the text of every token id that a run used, so that its pages need no model.

A run writes the file while it plays. Readers treat it as foreign: its size is bounded, links are
not followed, and a damaged one only costs the texts.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from envkit.errors import StorageError
from envkit.files import replace_file
from envkit.open_files import open_regular
from envkit.text import utf8

TokenText = Callable[[int], str]
"""Returns the text of a token id, such as `ChatCodec.token_text`."""
VOCABULARY_FILE: Final = "vocabulary.json"
MAX_IDS: Final = 65_536
MAX_BYTES: Final = 4 << 20
"""Maximum size of the file."""
MAX_CHARACTERS: Final = 256
"""Maximum length of one text; the rest becomes an ellipsis."""
_SCHEMA: Final = 1
_HEAD_BYTES: Final = 64
_GROWTH: Final = 1.5
"""By how much the ids grow between two writes, so that all of them cost as much as a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTexts:
    """The contents of the file."""

    schema: int = _SCHEMA
    left_out: int = 0
    """Number of ids whose text did not fit."""
    texts: Mapping[int, str]
    """By token id."""


def read_texts(stream: BinaryIO) -> StoredTexts:
    """Read the file.

    Raises:
        StorageError: It is damaged, too large, or has another format.
    """
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise StorageError(f"{VOCABULARY_FILE} is larger than {MAX_BYTES >> 20} MiB")
    try:
        found = msgspec.json.decode(data, type=StoredTexts)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StorageError(f"{VOCABULARY_FILE} is damaged") from error
    if found.schema != _SCHEMA or found.left_out < 0 or len(found.texts) > MAX_IDS:
        raise StorageError(f"{VOCABULARY_FILE} is not of this version's format")
    return found


class _Texts:
    """Texts within the bounds of the file, those that came first."""

    def __init__(self) -> None:
        self.kept: dict[int, str] = {}
        self._bytes = _HEAD_BYTES

    def add(self, token_id: int, text: str) -> bool:
        """Add a text if it fits; return whether it did."""
        plain = utf8(text)
        if len(plain) > MAX_CHARACTERS:
            plain = f"{plain[: MAX_CHARACTERS - 1]}…"
        size = len(msgspec.json.encode({token_id: plain})) - 1  # a comma instead of two brackets
        if len(self.kept) >= MAX_IDS or self._bytes + size > MAX_BYTES:
            return False
        self.kept[token_id] = plain
        self._bytes += size
        return True

    def write(self, path: Path, *, left_out: int) -> None:
        replace_file(path, msgspec.json.encode(StoredTexts(left_out=left_out, texts=self.kept)))


class VocabularyWriter:
    """Collects the ids that a run uses, and writes their texts.

    A failure to write is not an error: the pages of the run then show ids. A process that is killed
    leaves the file as of its last write.
    """

    def __init__(self, path: Path, *, is_new: bool) -> None:
        """Start with the ids of an earlier command.

        Args:
            path: The file.
            is_new: Whether there is none, or one to replace.
        """
        self.token_text: TokenText | None = None
        """Returns the texts to write; None for a model without tokens, whose run has no file."""
        self._path = path
        self._used: set[int] = set()
        self._texts = _Texts()
        self._left_out = 0
        """Number of ids that an earlier command left out."""
        self._written = (0, 0)
        """Number of texts and of ids left out, as last written."""
        self._has_episode = False
        """Whether this command has one; a command that was refused must leave the file."""
        self._next = 1
        """Number of ids at which to write."""
        if not is_new and (found := _read_if_sound(path)) is not None:
            # Only its ids count: the texts are the tokenizer's.
            self._used.update(found.texts)
            self._left_out = found.left_out

    def add(self, token_ids: Iterable[int]) -> None:
        """Take the ids of an episode; sometimes write the file."""
        self._has_episode = True
        self._used.update(token_ids)
        if len(self._used) >= self._next:
            self.write()

    def write(self) -> None:
        """Write the texts of all ids so far, unless the file has them."""
        if self.token_text is None or not self._has_episode:
            return
        for token_id in sorted(self._used - self._texts.kept.keys()):
            if not self._texts.add(token_id, spelled(token_id, self.token_text)):
                break
        self._next = int(_GROWTH * len(self._used)) + 1
        left_out = max(self._left_out, len(self._used) - len(self._texts.kept))
        counts = (len(self._texts.kept), left_out)
        if counts != self._written:
            with contextlib.suppress(StorageError):
                self._texts.write(self._path, left_out=left_out)
            self._written = counts


def spelled(token_id: int, token_text: TokenText) -> str:
    """Return the text of an id; empty if the tokenizer has none."""
    try:
        return token_text(token_id)
    except Exception:  # noqa: BLE001  # a foreign tokenizer, and an id that may not be one of its
        return ""


def merge_vocabularies(sources: Sequence[Path], target: Path) -> None:
    """Write what the vocabularies of several runs of one model hold; a damaged one adds nothing.

    Args:
        sources: Files that may exist.
        target: The file to write; none is there.

    Raises:
        StorageError: It cannot be written.
    """
    texts, left_out = _Texts(), 0
    for found in filter(None, map(_read_if_sound, sources)):
        left_out = max(left_out, found.left_out)
        for token_id, text in found.texts.items():
            left_out += token_id not in texts.kept and not texts.add(token_id, text)
    if texts.kept:
        texts.write(target, left_out=left_out)


def _read_if_sound(path: Path) -> StoredTexts | None:
    with contextlib.suppress(OSError), open_regular(path, follow=False) as stream:
        return read_texts(stream)
    return None
