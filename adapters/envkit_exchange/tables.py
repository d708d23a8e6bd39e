"""Atomic writers of rows: JSON lines, parquet files and datasets-library folders."""

import base64
import importlib
import json
import math
import secrets
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

from envkit import fast_json
from envkit.errors import ConfigurationError, MissingDependencyError, StorageError
from envkit.files import replace_file, storage_errors

Row = Mapping[str, Any]
_GROUP_ROWS: Final = 128
GROUP_BYTES: Final = 128 * 2**20
"""Bytes of a parquet file's row group, before compression. Readers load a group at a time."""
_LONGEST_ROW: Final = 2**31 - 1
"""Bytes of a row. pyarrow, pandas and the datasets library index bytes by 32-bit numbers."""
_BATCH_GROUPS: Final = 8
"""Most bytes of a batch of the datasets library, in row groups; see `_split_first_group`."""
SUFFIXES: Final = (".jsonl", ".parquet")


def check_target(
    target: Path, *, is_folder: bool, overwrite: bool, suffixes: Sequence[str] = SUFFIXES
) -> None:
    """Check early that a target can be written.

    Args:
        target: The file or folder.
        is_folder: Whether the target is a folder.
        overwrite: Whether an existing target may be replaced.
        suffixes: Allowed file extensions.

    Raises:
        ConfigurationError: The file extension is unknown.
        MissingDependencyError: The target is a parquet file and pyarrow is not installed.
        StorageError: The target exists and may not be replaced.
    """
    if not is_folder and target.suffix not in suffixes:
        raise ConfigurationError(
            f"--out must end in {' or '.join(suffixes)}, which selects the format, "
            f"got {str(target)!r}"
        )
    if is_folder or target.suffix == ".parquet":
        arrow()
    if target.is_dir() and not is_folder:
        raise StorageError(f"--out must name a file, got the folder {str(target)!r}")
    if target.is_file() and is_folder:
        raise StorageError(f"--out must name a folder, got the file {str(target)!r}")
    if not overwrite and (target.is_file() or (target.is_dir() and any(target.iterdir()))):
        raise StorageError(f"{target} already exists: choose another --out, or add --overwrite")


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """Provide a path for a file or folder that replaces the target once the block ends.

    If the block raises, nothing is left of it.

    Raises:
        StorageError: The target cannot be written.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with storage_errors(f"cannot write {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        with storage_errors(f"cannot write {target}"):
            if target.is_dir():
                shutil.rmtree(target)
            temporary.replace(target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)


class RowGroup:
    """Collects rows of a parquet file until a row group is full."""

    def __init__(self, *, rows: int = _GROUP_ROWS, group_bytes: int = GROUP_BYTES) -> None:
        """Start an empty group.

        Args:
            rows: Most rows of a group.
            group_bytes: Most bytes of a group. A larger row becomes a group of its own.
        """
        self._most_rows, self._most_bytes = rows, group_bytes
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self.largest_row = 1
        """Bytes of the largest row so far."""

    def add(self, row: Row) -> list[dict[str, Any]]:
        """Add a row, and return the rows before it if their group is full.

        Raises:
            StorageError: The row is too large for readers of parquet files.
        """
        size = _byte_count(row)
        if size > _LONGEST_ROW:
            raise StorageError(
                f"a row of a parquet file must be smaller than 2 GiB, or readers fail; got {size} "
                "bytes; write .jsonl instead"
            )
        self.largest_row = max(self.largest_row, size)
        is_full = len(self._rows) >= self._most_rows or self._bytes + size > self._most_bytes
        full = self.take() if is_full else []
        self._rows.append(dict(row))
        self._bytes += size
        return full

    def take(self) -> list[dict[str, Any]]:
        """Return the collected rows and start the next group."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return rows


def _byte_count(value: Any) -> int:  # noqa: ANN401
    """Return about how many bytes a value takes in a row group."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_byte_count, cast("Mapping[str, Any]", value).values()))
    if isinstance(value, list | tuple) and value:
        items = cast("Sequence[Any]", value)
        if isinstance(items[0], int | float):  # of token ids there are many
            return 8 * len(items)
        return sum(map(_byte_count, items))
    return 8


def write_table(
    rows: Iterable[Row],
    target: Path,
    schema: Mapping[str, Any] | None = None,
    *,
    group_bytes: int = GROUP_BYTES,
) -> int:
    """Write a .jsonl or .parquet file and return its number of rows.

    JSON lines cannot contain bytes, so bytes become data URIs there.

    Args:
        rows: Written as they are generated. If the iteration raises, no file is left.
        target: The file. An existing one is replaced once the new one is complete.
        schema: Arrow types of columns that the first rows may leave undetermined.
        group_bytes: As for `RowGroup`.

    Raises:
        StorageError: It cannot be written, or there are no rows.
    """
    if target.suffix != ".jsonl":
        with replacing(target) as temporary:
            return _write_parquet(rows, temporary, dict(schema or {}), group_bytes)
    with storage_errors(f"cannot write {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
    counted = _Counted(rows)
    replace_file(target, (_json_line(row) for row in counted))
    return counted.count


def write_folder(
    rows: Iterable[Row],
    target: Path,
    schema: Mapping[str, Any] | None = None,
    *,
    split: str,
    group_bytes: int = GROUP_BYTES,
) -> int:
    """Write a folder that `datasets.load_dataset(folder)` reads, and return its number of rows.

    Args:
        rows: As for `write_table`.
        target: The folder. An existing one is replaced once the new one is complete.
        schema: As for `write_table`.
        split: Name of the rows' split.
        group_bytes: As for `RowGroup`.

    Raises:
        StorageError: It cannot be written, or there are no rows.
    """
    with replacing(target) as temporary:
        file = temporary / "data" / f"{split}-00000-of-00001.parquet"
        return write_table(rows, file, schema, group_bytes=group_bytes)


def arrow() -> Any:  # noqa: ANN401  # pyarrow has no complete type stubs
    """Return pyarrow.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingDependencyError.for_extra("a parquet file", "pyarrow", "parquet") from error


def image_column(*, as_text: bool = False) -> dict[str, Any]:
    """Return the arrow type of the column `images`.

    Args:
        as_text: Whether the column contains data URIs rather than PNG bytes in the datasets
            library's form.
    """
    pa = arrow()
    if as_text:
        return {"images": pa.list_(pa.string())}
    return {"images": pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}


class _Counted:
    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows, self.count = rows, 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self.count += 1
            yield row
        if not self.count:
            raise StorageError("there are no rows; nothing was written")


def _write_parquet(rows: Iterable[Row], file: Path, types: dict[str, Any], group_bytes: int) -> int:
    pa = arrow()
    counted, group = _Counted(rows), RowGroup(group_bytes=group_bytes)
    writer: Any = None
    schema: Any = None
    try:
        with storage_errors(f"cannot write {file.parent}"):
            for batch in _groups(counted, group):
                if schema is None:
                    schema = _schema(pa, batch, types)
                    writer = pa.parquet.ParquetWriter(file, schema)
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            writer.close()
            _split_first_group(pa, file, _BATCH_GROUPS * group_bytes // group.largest_row or 1)
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise StorageError(
            f"row {counted.count} or one just before it does not fit the columns of the first "
            f"rows: {error}; write .jsonl instead"
        ) from error
    finally:
        if writer is not None:
            writer.close()
    return counted.count


def _groups(rows: Iterable[Row], group: RowGroup) -> Iterator[list[dict[str, Any]]]:
    for row in rows:
        if full := group.add(row):
            yield full
    yield group.take()


def _split_first_group(pa: Any, file: Path, most_rows: int) -> None:  # noqa: ANN401
    """Rewrite a file whose first row group has more rows than a batch may have.

    datasets 3 reads as many rows at a time as the first group has, whatever their size
    (datasets/packaged_modules/parquet/parquet.py, `_generate_tables`): after short rows, a batch of
    long ones exceeds 2 GiB.
    """
    parquet = pa.parquet
    if parquet.read_metadata(file).row_group(0).num_rows <= most_rows:
        return
    split = file.with_name(f"{file.name}.tmp")
    try:
        with (
            parquet.ParquetFile(file) as source,
            parquet.ParquetWriter(split, source.schema_arrow) as writer,
        ):
            for number in range(source.num_row_groups):
                writer.write_table(source.read_row_group(number), row_group_size=most_rows)
        split.replace(file)
    finally:
        split.unlink(missing_ok=True)


def _schema(pa: Any, batch: list[dict[str, Any]], types: Mapping[str, Any]) -> Any:  # noqa: ANN401
    guessed = pa.Table.from_pylist(batch).schema
    fields = [pa.field(field.name, types.get(field.name, field.type)) for field in guessed]
    schema = pa.schema(fields)
    features = _features(schema)
    return schema if features is None else schema.with_metadata({"huggingface": features})


def _features(schema: Any) -> str | None:  # noqa: ANN401
    """Return the metadata that makes the datasets library decode `images`, or None."""
    if "images" not in schema.names or schema.field("images").type != image_column()["images"]:
        return None
    features = {
        field.name: [{"_type": "Image"}] if field.name == "images" else _feature(field.type)
        for field in schema
    }
    return json.dumps({"info": {"features": features}})


def _feature(kind: Any) -> Any:  # noqa: ANN401
    """Return an Arrow type in the datasets library's notation, which all its releases read.

    A list is a JSON list of its only item: the name of its type is "Sequence" before release 4 and
    "List" since then.
    """
    pa = arrow()
    if pa.types.is_list(kind):
        return [_feature(kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: _feature(field.type) for field in kind}
    name = str(kind)
    return {"dtype": {"double": "float64", "float": "float32"}.get(name, name), "_type": "Value"}


def _json_line(row: Row) -> bytes:
    try:
        return _encoded(_plain(row)) + b"\n"
    except (TypeError, ValueError) as error:
        raise StorageError(f"a row is not valid JSON: {error}; write .parquet instead") from error


def _encoded(row: object) -> bytes:
    with suppress(TypeError, ValueError, OverflowError):  # what msgspec does not take
        text = fast_json.dumps(row)
        # It leaves other characters as they are, and some of those end a line for some readers.
        if text.isascii():
            return text
    return json.dumps(row, separators=(",", ":"), allow_nan=False).encode("ascii")


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value as JSON data.

    Raises:
        ValueError: A number is not finite.
        TypeError: JSON has no such type.
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value)
        if set(items) == {"bytes", "path"}:
            payload = base64.b64encode(items["bytes"]).decode("ascii")
            return f"data:image/png;base64,{payload}"
        return {key: _plain(item) for key, item in items.items()}
    if isinstance(value, list | tuple):
        found = cast("list[Any]", value)
        kinds = set(map(type, found))
        if kinds <= {int} or (kinds <= {int, float} and all(map(math.isfinite, found))):
            return found  # of token ids and log-probabilities there are many
        return [_plain(item) for item in found]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"Out of range float values are not JSON compliant: {value!r}")
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return value
