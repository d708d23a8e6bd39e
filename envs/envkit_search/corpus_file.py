"""Your own corpus: a file of documents, one JSON object per line.

A line is `{"id", "title", "text"}`, or `{"id", "contents"}` as in the corpora of Search-R1
(search_r1/search/retrieval_server.py), where the first line of `contents` is the title in quotes.
An `id` may be a number; empty lines are skipped.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import DatasetError
from envkit_search.contents import split_contents
from envkit_search.document import Document

SUFFIX: Final = ".jsonl"
Progress = Callable[[int, int], object]
"""Called with the number of documents read and an estimate of the total."""

_MEBIBYTE: Final = 1 << 20
_TOLD_EVERY: Final = 1000
"""Documents between calls of the progress function."""


def read_documents(
    path: str | os.PathLike[str], progress: Progress | None = None
) -> Iterator[Document]:
    """Yield the documents of a file, in order.

    Raises:
        DatasetError: The file cannot be read, or a line is not a document; the message names the
            line.
    """
    place, done, number = Path(path), 0, 0
    try:
        with place.open("rb") as lines:
            size = os.fstat(lines.fileno()).st_size
            for number, line in enumerate(lines, start=1):
                done += len(line)
                if line.strip():
                    yield _read_line(line, f"line {number} of {str(place)!r}")
                if progress is not None and number % _TOLD_EVERY == 0:
                    progress(number, max(number, number * size // done))
        if progress is not None:
            progress(number, number)
    except OSError as error:
        raise DatasetError(f"cannot read the corpus {str(place)!r}: {error}") from error


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Return a fingerprint of a corpus file: its size and a hash of its two ends.

    Hashing the whole file would take minutes for corpora that need an index on disk.

    Raises:
        DatasetError: The file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(file.read(_MEBIBYTE))
            file.seek(max(0, size - _MEBIBYTE))
            digest.update(file.read(_MEBIBYTE))
    except OSError as error:
        raise DatasetError(f"cannot read the corpus {str(path)!r}: {error}") from error
    return f"{size}-{digest.hexdigest()}"


def _read_line(line: bytes, place: str) -> Document:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{place} must be a JSON object, got {line[:80]!r}: {error}") from error
    if not isinstance(row, dict):
        raise DatasetError(f"{place} must be a JSON object, got {line[:80]!r}")
    fields = cast("dict[str, Any]", row)
    identity: Any = fields.get("id")
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise DatasetError(
            f"{place} needs an 'id', a string or a whole number, got {identity!r:.80}"
        )
    title, text = _texts(fields, place)
    return Document(id=str(identity), title=title, text=text)


def _texts(fields: dict[str, Any], place: str) -> tuple[str, str]:
    title, text, contents = (fields.get(name) for name in ("title", "text", "contents"))
    if isinstance(text, str):
        if title is not None and not isinstance(title, str):
            raise DatasetError(f"{place} needs a string as 'title', got {title!r:.80}")
        return title or "", text
    if isinstance(contents, str):
        return split_contents(contents)
    raise DatasetError(
        f"{place} needs the string 'text' (and 'title') or 'contents', got the keys "
        f"{sorted(fields)[:8]}"
    )
