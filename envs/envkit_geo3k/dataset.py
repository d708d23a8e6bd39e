"""Questions about images from local files: Geometry3K as trainers publish it, and other sets.

A row becomes a task of plain JSON: id, question, raw text, answer, images as data URIs. An unusable
row is an error, or is skipped and counted by reason. Nothing is fetched from the network.
"""

import importlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from envkit.errors import DatasetError, MissingDependencyError
from envkit.tasks import Task
from envkit_geo3k.dataset_rows import RowSkippedError, is_image_column, read_row
from envkit_geo3k.grading import is_readable

_SUFFIXES: Final = (".parquet", ".jsonl")
_SPLIT_NAMES: Final = {
    "train": ("train",),
    "validation": ("validation", "val", "valid"),
    "test": ("test",),
}
_BATCH_ROWS: Final = 64
_LIKE_A_VALUE: Final = re.compile(r"[0-9\\=+^<>/*±]|^[A-Z]$")
"""Answers of any question that are not just words."""
_MAX_LISTED: Final = 20
_SUITE_COLUMNS: Final = frozenset({"doc_id", "input", "target", "choices", "options"})
"""Columns that distinguish an evaluation suite's rows from Geometry3K's."""


class Flavour(StrEnum):
    """Which published column layout a file has."""

    HF = "hf"
    """hiyouga/geometry3k: images (structs of bytes and path), problem, answer."""
    DATA_URI = "data_uri"
    """chenhegu/geo3k_imgurl: images as data URIs, problem, answer; also the processed one, whose
    problem carries protocol prose."""
    VERL = "verl"
    """The output of verl's geo3k.py: prompt, images, reward_model, extra_info."""
    VERL_TOOL = "verl_tool"
    """The output of verl's geo3k_multiturn_w_tool.py: the same with a system message and tools."""
    SLIME = "slime"
    """A jsonl or parquet file with slime's usual keys: prompt (text or messages), images, label."""
    QUESTIONS = "questions"
    """Rows of evaluation suites: doc_id or id, question or input, answer or target, images, and
    perhaps choices."""
    SKYRL = "skyrl"
    """The output of SkyRL's geometry_3k_dataset.py: prompt with content parts, reward_spec."""


_EXPECTED: Final = (
    "(images or image, problem or question, answer or label) as in hiyouga/geometry3k and its "
    "data URI variants, or (question or input, target or answer, images or image, choices) as in "
    "evaluation suites, or (prompt, images, label) as in slime, or (prompt, images, reward_model) "
    "as in verl, or (prompt, reward_spec) as in SkyRL"
)


class DatasetSource:
    """Tasks from files, in memory, in the files' order."""

    def __init__(
        self,
        tasks: list[Task],
        skipped: Mapping[str, int],
        flavours: Iterable[Flavour],
        unread: Mapping[str, Sequence[int]],
    ) -> None:
        self._tasks = tasks
        self.size = len(tasks)
        """Number of usable rows."""
        self.unread: Mapping[str, tuple[int, ...]] = {
            name: tuple(rows) for name, rows in unread.items()
        }
        """Rows whose answer is no value, by file: replies are compared with it as text."""
        self.skipped: Mapping[str, int] = dict(skipped)
        """Skipped rows, counted by reason."""
        self.flavours: tuple[Flavour, ...] = tuple(sorted(set(flavours)))
        """Column layouts that were found."""

    def task(self, index: int) -> Task:
        """Return the row at this index.

        Raises:
            DatasetError: There is no such row.
        """
        if not 0 <= index < self.size:
            raise DatasetError(f"the dataset has rows 0 to {self.size - 1}, got {index}")
        return dict(self._tasks[index])


def load_tasks(
    path: str | Path, split: str | None = None, *, skip_bad: bool = False
) -> DatasetSource:
    """Read tasks from a parquet or jsonl file, or from a folder of them.

    Args:
        path: The file or folder.
        split: "train", "validation" or "test". In a folder it selects files by name; rows that name
            another split in `extra_info` are skipped. None selects everything.
        skip_bad: Skip unusable rows, count them in `skipped` and warn, instead of raising at the
            first one.

    Warns with the row numbers about answers that the grader cannot read and compares as text. Words
    as the answer of a question that is not about geometry are text by nature, so they are left out.

    Raises:
        DatasetError: The file is missing, unreadable or has an unknown column layout, or a row
            cannot be used.
        MissingDependencyError: A parquet file is given and pyarrow is not installed.
    """
    if split is not None and split not in _SPLIT_NAMES:
        raise DatasetError(f"split must be one of {sorted(_SPLIT_NAMES)} or None, got {split!r}")
    tasks: list[Task] = []
    skipped: Counter[str] = Counter()
    flavours: list[Flavour] = []
    unread: dict[str, list[int]] = {}
    for file in _files(Path(path), split):
        for number, task in _tasks_of(file, split, flavours):
            if not isinstance(task, RowSkippedError):
                tasks.append(task)
                if _is_unread(task, flavours[-1]):
                    unread.setdefault(file.name, []).append(number)
            elif skip_bad:
                skipped[str(task)] += 1
            else:
                raise DatasetError(
                    f"row {number} of {file} cannot be used: {task}. Fix it, or skip such "
                    "rows with skip_bad=true"
                )
    why = ", ".join(f"{reason} ({count})" for reason, count in skipped.items())
    if not tasks:
        raise DatasetError(f"{path} has no usable row for split {split!r}: {why or 'no rows'}")
    if skipped:
        total = len(tasks) + skipped.total()
        warnings.warn(
            f"skipped {skipped.total()} of {total} rows of {path}: {why}",
            RuntimeWarning,
            stacklevel=2,
        )
    if unread:
        count = sum(map(len, unread.values()))
        warnings.warn(
            f"{count} of {len(tasks)} answers of {path} are not values that the grader reads. It "
            f"compares replies with them as text: {_listed(unread)}. Write them as a number, a "
            "point, a ratio or a formula, or delete these rows",
            RuntimeWarning,
            stacklevel=2,
        )
    return DatasetSource(tasks, skipped, flavours, unread)


def _is_unread(task: Task, flavour: Flavour) -> bool:
    """Return whether the grader should read an answer as a value and cannot."""
    answer: str = task["answer"]
    if "choices" in task or (flavour is Flavour.QUESTIONS and not _LIKE_A_VALUE.search(answer)):
        return False
    return not is_readable(answer)


def _listed(unread: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(
        f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:_MAX_LISTED]))}"
        f"{f' and {len(rows) - _MAX_LISTED} more' * (len(rows) > _MAX_LISTED)} of {name}"
        for name, rows in unread.items()
    )


def _tasks_of(
    file: Path, split: str | None, flavours: list[Flavour]
) -> Iterator[tuple[int, Task | RowSkippedError]]:
    """Yield the number of each row of the split, and its task or error."""
    flavour: Flavour | None = None
    for number, row in _rows(file):
        try:
            if isinstance(row, RowSkippedError):
                raise row
            if flavour is None:
                flavour = _flavour(row, file)
                flavours.append(flavour)
            if not _is_of_another_split(row, split):
                as_it_is = flavour is Flavour.QUESTIONS
                yield number, read_row(row, number - 1, file, split, as_it_is=as_it_is)
        except RowSkippedError as reason:
            yield number, reason


def _files(path: Path, split: str | None) -> list[Path]:
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            raise DatasetError(f"a data file must end in {' or '.join(_SUFFIXES)}, got {path.name}")
        return [path]
    if not path.is_dir():
        raise DatasetError(
            f"there is no file or folder {str(path)!r}; give a local parquet or jsonl file of "
            "Geometry3K, since nothing is downloaded"
        )
    found = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)
    if split is not None:
        found = [file for file in found if _names_split(file, split)]
    if not found:
        raise DatasetError(
            f"the folder {str(path)!r} has no {' or '.join(_SUFFIXES)} file"
            + (f" whose name contains {split!r}" if split else "")
        )
    return found


def _names_split(file: Path, split: str) -> bool:
    words = "".join(c if c.isalnum() else " " for c in file.stem.lower()).split()
    return any(name in words for name in _SPLIT_NAMES[split])


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | RowSkippedError]]:
    """Yield the rows and their numbers, from 1; for a jsonl file, line numbers."""
    if file.suffix == ".parquet":
        return enumerate(_parquet_rows(file), start=1)
    return _json_rows(file)


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    try:
        arrow: Any = importlib.import_module("pyarrow")  # Any: it has no complete type stubs
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            "reading parquet files", "pyarrow", "geo3k"
        ) from error
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_BATCH_ROWS):
                yield from batch.to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise DatasetError(f"{file} is not a readable parquet file: {error}") from error


def _json_rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | RowSkippedError]]:
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _json_row(line)
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error}") from error


def _json_row(line: str) -> dict[str, Any] | RowSkippedError:
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError):
        return RowSkippedError("the line is not valid JSON")
    if not isinstance(row, dict):
        return RowSkippedError("the line is not a JSON object")
    return row  # pyright: ignore[reportUnknownVariableType]  # any JSON


def _flavour(row: Mapping[str, Any], file: Path) -> Flavour:
    """Recognise the layout by the first row's columns.

    Raises:
        DatasetError: The layout is unknown.
    """
    columns = set(row)
    if {"prompt", "reward_spec"} <= columns:
        return Flavour.SKYRL
    if {"prompt", "reward_model"} <= columns:
        extra: object = row.get("extra_info")
        uses_tools = isinstance(extra, dict) and "tools_kwargs" in extra
        return Flavour.VERL_TOOL if uses_tools else Flavour.VERL
    has_answer, has_images = columns & {"answer", "label"}, columns & {"images", "image"}
    is_pictured = any(is_image_column(name) for name in columns) or isinstance(
        row.get("input"), list
    )
    if (
        columns & _SUITE_COLUMNS
        and columns & {"question", "input", "problem"}
        and columns & {"answer", "target", "label"}
        and is_pictured
    ):
        return Flavour.QUESTIONS
    if "prompt" in columns and has_answer and (has_images or isinstance(row["prompt"], list)):
        return Flavour.SLIME
    if columns & {"problem", "question"} and has_answer and has_images:
        images: object = row.get("images") or [row.get("image")]
        first: object = images[0] if isinstance(images, list) and images else images  # pyright: ignore[reportUnknownVariableType]  # any JSON
        return Flavour.DATA_URI if isinstance(first, str) else Flavour.HF
    raise DatasetError(f"{file} has the columns {sorted(columns)}; expected {_EXPECTED}")


def _is_of_another_split(row: Mapping[str, Any], split: str | None) -> bool:
    extra: object = row.get("extra_info")
    named: object = row.get("split")
    if named is None and isinstance(extra, dict):
        named = extra.get("split")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # any JSON
    if split is None or not isinstance(named, str):
        return False
    return named.lower() not in _SPLIT_NAMES[split]
