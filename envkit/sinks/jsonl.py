"""A run directory as a sink."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envkit.closing import Closing
from envkit.errors import ConfigurationError
from envkit.files import replace_file
from envkit.trajectory.storage import Mode, TrajectoryWriter
from envkit.trajectory.trajectory import Trajectory

METRICS_FILE: Final = "metrics.json"


class JsonlSink(Closing):
    """A run directory: `trajectories.jsonl`, `images/` and `metrics.json`."""

    def __init__(
        self, directory: str | os.PathLike[str], *, mode: Mode = "create", durable: bool = False
    ) -> None:
        """Open the directory; the arguments are those of `TrajectoryWriter`.

        Raises:
            StorageError: The directory cannot be written, or already contains trajectories.
        """
        self._writer = TrajectoryWriter(directory, mode=mode, durable=durable)
        self._metrics = Path(directory) / METRICS_FILE

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory.

        Raises:
            StorageError: It cannot be written; the file is unchanged.
        """
        self._writer.write(trajectory)

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Replace metrics.json; a step is stored under the key "step".

        Raises:
            StorageError: It cannot be written; the existing file is kept.
            ConfigurationError: A metric is not a finite number.
        """
        row = dict(metrics) if step is None else {"step": step, **metrics}
        try:
            text = json.dumps(row, indent=2, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"metrics must be finite numbers: {error}") from error
        replace_file(self._metrics, text.encode() + b"\n")

    def close(self) -> None:
        """Close the trajectory file."""
        self._writer.close()
