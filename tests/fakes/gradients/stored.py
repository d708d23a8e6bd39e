"""Store gradients in files, to compare trainers from different Python environments."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
from fakes.gradients.suite import Comparison, Vector, Verdict, measure

from envkit.errors import StorageError

_SUFFIX: Final = ".gradients.npz"
_FACTS: Final = "facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One comparison, read from a file."""

    path: str
    shape: str
    key: str
    """Episode set and case."""
    verdict: str
    cosine: float | None
    norm_ratio: float | None
    message: str
    vector: Vector | None


def save_gradients(
    comparisons: Iterable[Comparison], directory: str | os.PathLike[str], name: str
) -> Path:
    """Write comparisons with their gradients to `DIRECTORY/NAME.gradients.npz`.

    Raises:
        StorageError: The file cannot be written.
    """
    arrays: dict[str, Any] = {}
    facts: list[dict[str, Any]] = []
    for number, one in enumerate(comparisons):
        facts.append(
            {
                "path": one.path,
                "shape": one.shape.value,
                "key": one.key,
                "verdict": one.verdict.value,
                "cosine": one.cosine,
                "norm_ratio": one.norm_ratio,
                "message": one.message,
            }
        )
        if one.vector is not None:
            arrays[str(number)] = one.vector
    arrays[_FACTS] = np.asarray(json.dumps(facts))
    file = Path(directory) / f"{name}{_SUFFIX}"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, **arrays)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error}") from error
    return file


def load_gradients(directory: str | os.PathLike[str]) -> tuple[Stored, ...]:
    """Read all files of a folder.

    Raises:
        StorageError: There are no stored gradients, or one cannot be read.
    """
    files = sorted(Path(directory).glob(f"*{_SUFFIX}"))
    if not files:
        raise StorageError(f"{directory} must hold files *{_SUFFIX}, got none")
    return tuple(one for file in files for one in _read(file))


def _read(file: Path) -> list[Stored]:
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            facts: list[dict[str, Any]] = json.loads(str(arrays[_FACTS]))
            return [Stored(**fact, vector=arrays.get(str(n))) for n, fact in enumerate(facts)]
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise StorageError(f"cannot read {file}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two paths over all cases in which neither has a known difference."""

    cases: int
    cosine: float
    """The smallest cosine."""
    norm_error: float
    """The largest distance of a ratio of norms from 1."""


def pairs(stored: Sequence[Stored]) -> dict[tuple[str, str], Pair]:
    """Compare every two paths directly, without the reference formula."""
    vectors: dict[str, dict[str, list[Vector]]] = {}
    for one in stored:
        if one.verdict == Verdict.EQUAL.value and one.vector is not None:
            vectors.setdefault(one.path, {}).setdefault(one.key, []).append(one.vector)
    return {
        (first, second): _pair(vectors[first], vectors[second])
        for first in vectors
        for second in vectors
        if first != second
    }


def _pair(one: Mapping[str, list[Vector]], other: Mapping[str, list[Vector]]) -> Pair:
    found = [
        measure(left, right)
        for key in one.keys() & other.keys()
        for left in one[key]
        for right in other[key]
    ]
    return Pair(
        cases=len(one.keys() & other.keys()),
        cosine=min((cosine for cosine, _ in found), default=1.0),
        norm_error=max((abs(ratio - 1) for _, ratio in found), default=0.0),
    )
