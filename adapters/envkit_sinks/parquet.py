"""Write a run as one parquet file, a row per trajectory, for pandas, DuckDB or `datasets`."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from envkit.errors import StorageError
from envkit.files import storage_errors
from envkit.trajectory.trajectory import Trajectory
from envkit_exchange.tables import arrow
from envkit_sinks.parquet_rows import row_of, schema_of_rows

METRICS_KEY: Final = "envkit.metrics"
"""Key in the file's metadata of the last `write_metrics` argument, as JSON text."""


class ParquetSink:
    """One parquet file with the columns of `envkit_sinks.parquet_rows`.

    Rows are written in groups during the run, to a temporary file next to the target, because a
    parquet file is unreadable without its footer. `close` writes the footer and renames the file,
    even after Ctrl-C. Without trajectories, no file is written.
    """

    def __init__(
        self, file: str | os.PathLike[str], *, overwrite: bool = False, group_rows: int = 64
    ) -> None:
        """Choose the file and create its folder if needed.

        Args:
            file: File for the rows.
            overwrite: Replace an existing file once the new one is complete.
            group_rows: Trajectories buffered in memory between writes.

        Raises:
            MissingDependencyError: pyarrow is not installed.
            StorageError: The file already exists, or its folder cannot be created.
        """
        self._arrow: Any = arrow()
        self.file: Final = Path(file)
        if self.file.is_dir():
            raise StorageError(f"a parquet file must not be a folder, got {str(self.file)!r}")
        if self.file.exists() and not overwrite:
            raise StorageError(f"{self.file} already exists: choose another, or overwrite it")
        with storage_errors(f"cannot write {self.file}"):
            self.file.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self.file.with_name(f".{self.file.name}.{secrets.token_hex(4)}.tmp")
        self._schema = schema_of_rows(self._arrow)
        self._group_rows = group_rows
        self._waiting: list[dict[str, Any]] = []
        self._writer: Any = None

    def write(self, trajectory: Trajectory) -> None:
        """Add a row.

        Raises:
            StorageError: The write failed, or free-form data cannot be written as JSON.
        """
        self._waiting.append(row_of(trajectory))
        if len(self._waiting) >= self._group_rows:
            self._flush()

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep metrics in the file's metadata, replacing earlier ones.

        Raises:
            StorageError: The write failed.
        """
        row = dict(metrics) if step is None else {"step": step, **metrics}
        self._flush()
        if self._writer is not None:
            self._writer.add_key_value_metadata({METRICS_KEY: json.dumps(row)})

    def close(self) -> None:
        """Write remaining rows and the footer, then rename the file to its final name.

        Raises:
            StorageError: The write failed; no file is left.
        """
        try:
            self._flush()
            if self._writer is not None:
                self._end()
        finally:
            self._writer, self._waiting = None, []
            self._temporary.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows, self._waiting = self._waiting, []
        with storage_errors(f"cannot write {self.file}"):
            if self._writer is None:
                self._writer = self._arrow.parquet.ParquetWriter(self._temporary, self._schema)
            table = self._arrow.Table.from_pylist(rows, schema=self._schema)
            self._writer.write_table(table)

    def _end(self) -> None:
        with storage_errors(f"cannot write {self.file}"):
            self._writer.close()
            self._temporary.replace(self.file)
