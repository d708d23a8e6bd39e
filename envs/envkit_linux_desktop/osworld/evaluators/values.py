"""What evaluators compare: files as bytes, and texts."""

import io
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

Options = Mapping[str, Any]
"""A task's options for an evaluator."""
Evaluator = Callable[[Any, Any, Options], float]
"""Scores a result against an expected value."""
MAX_EXPANDED: Final = 64 << 20
"""Maximum bytes in all the parts of one archive."""
MAX_COMPARED: Final = 1 << 16
"""Maximum characters of a text that is compared; two of this length take about a second."""
MAX_PARTS: Final = 2000
_LEAST_GAIN: Final = 0.01


class UnreadableError(Exception):
    """A file's bytes are not what its name says."""

    def __init__(self, file: "File", reason: str) -> None:
        super().__init__(f"{file.name}: {reason}")
        self.file = file


@dataclass(frozen=True, kw_only=True)
class File:
    """A file's bytes, and those of the files fetched before it."""

    name: str
    data: bytes
    is_result: bool
    """Whether the policy left it, as opposed to a task's own file."""
    others: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def ending(self) -> str:
        """The name's ending in lowercase, without the dot."""
        return self.name.rpartition(".")[2].lower() if "." in self.name else ""


@contextmanager
def reading(file: File) -> Generator[None]:
    """Take whatever a document's library raises as a defect of the file.

    Raises:
        UnreadableError: The block raised anything.
    """
    try:
        yield
    except (UnreadableError, MemoryError):
        raise
    except Exception as error:
        raise UnreadableError(file, f"{type(error).__name__}: {error}") from error


def of_file(run: Callable[[File, Any, Options], float]) -> Evaluator:
    """Return an evaluator of a file; every other result scores 0.0."""
    return lambda result, expected, options: (
        run(result, expected, options) if isinstance(result, File) else 0.0
    )


def of_files(run: Callable[[File, File, Options], float]) -> Evaluator:
    """Return an evaluator of two files; all other values score 0.0."""
    return of_file(
        lambda result, expected, options: (
            run(result, expected, options) if isinstance(expected, File) else 0.0
        )
    )


def of_one_file(check: Callable[[File, Mapping[str, Any]], float]) -> Evaluator:
    """Return an evaluator of a file and rules; what cannot be read in the file is its fault."""

    def evaluate(result: File, rules: Any, _: Options) -> float:  # noqa: ANN401
        with reading(result):
            return check(result, rules if isinstance(rules, dict) else {})

    return of_file(evaluate)


def open_zip(file: File) -> zipfile.ZipFile:
    """Open an archive that expands to a bounded size.

    Raises:
        UnreadableError: It is not a zip file, or too large.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(file.data))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UnreadableError(file, str(error)) from error
    parts = archive.infolist()
    if len(parts) > MAX_PARTS or sum(part.file_size for part in parts) > MAX_EXPANDED:
        raise UnreadableError(file, "it expands beyond what any task needs")
    return archive


def text_of(file: File) -> str:
    """Return a file's text: UTF-8 with or without a mark, else Latin-1, which reads any bytes."""
    try:
        text = file.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = file.data.decode("latin-1")
    return text.replace("\r\n", "\n")


def as_text(value: Any) -> str:  # noqa: ANN401  # any value of a getter
    """Return a getter's value as text."""
    return text_of(value) if isinstance(value, File) else str(value)


def above_base(found: float, base: float) -> float:
    """Return how far a similarity is above the one of an unchanged file, as a part of the rest."""
    return (found - base) / (1 - base) if found >= base + _LEAST_GAIN else 0.0


def similarity(one: str, two: str) -> float:
    """Return 0 to 1: twice the longest common subsequence over both lengths.

    Bit-parallel (Hyyrö 2004): one step per character of `two`. A text beyond `MAX_COMPARED` is
    similar only to itself, because a policy could keep a grader busy for minutes.
    """
    total = len(one) + len(two)
    if one == two or max(len(one), len(two)) > MAX_COMPARED:
        return float(one == two)
    places: dict[str, int] = {}
    for index, character in enumerate(one):
        places[character] = places.get(character, 0) | (1 << index)
    mask = (1 << len(one)) - 1
    row = mask
    for character in two:
        shared = row & places.get(character, 0)
        row = ((row + shared) | (row - shared)) & mask
    return 2 * (len(one) - row.bit_count()) / total
