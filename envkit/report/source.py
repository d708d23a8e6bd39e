"""Where a page's trajectories come from: a file, a run directory, or memory."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from envkit.report.episodes import Episode, draw_episode
from envkit.sinks.jsonl import METRICS_FILE
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.storage import FILE_NAME, StoredLine, read_lines, trajectory_file
from envkit.trajectory.trajectory import Trajectory

Source = str | os.PathLike[str] | Iterable[Trajectory]


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run to read once, from its first trajectory to its last."""

    given: Source
    """A trajectory file, a run directory, or trajectories."""

    @property
    def origin(self) -> str:
        """What to call it: folder and file, without the path before them."""
        if isinstance(self.given, (str, os.PathLike)):
            return "/".join(trajectory_file(self.given).resolve().parts[-2:])
        return "trajectories in memory"

    @property
    def name(self) -> str:
        """The run's directory, or the file where it has another name than a run's."""
        path = Path(self.origin)
        return path.parent.name if path.name == FILE_NAME else path.name

    def lines(self) -> Iterator[StoredLine]:
        """Yield every line, readable or not.

        Raises:
            StorageError: The file itself cannot be read.
        """
        if isinstance(self.given, (str, os.PathLike)):
            yield from read_lines(self.given)
            return
        for number, trajectory in enumerate(self.given, start=1):
            yield StoredLine(line=number, trajectory=trajectory, certificate=None)

    def image_folder(self) -> ImageFolder | None:
        """Return where the pictures' files are; None for trajectories in memory."""
        if isinstance(self.given, (str, os.PathLike)):
            return ImageFolder(trajectory_file(self.given).parent / IMAGE_FOLDER)
        return None

    def recorded_metrics(self) -> dict[str, float]:
        """Return the metrics that the rollout left beside its trajectories; empty without any.

        Only the rollout itself knows its wall-clock time. A file that is damaged counts as none.
        """
        if not isinstance(self.given, (str, os.PathLike)):
            return {}
        file = trajectory_file(self.given)
        if file.name != FILE_NAME:
            return {}
        try:
            found: object = json.loads((file.parent / METRICS_FILE).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        entries = cast("dict[str, Any]", found)
        return {k: float(v) for k, v in entries.items() if type(v) in (int, float)}


def draw_line(stored: StoredLine, *, with_tokens: bool) -> Episode | str:
    """Prepare one line for a page, or say why it cannot be read, without the machine's path.

    Args:
        stored: The line.
        with_tokens: Whether the page will show tokens as text.
    """
    if stored.trajectory is not None:
        return draw_episode(
            stored.trajectory, stored.certificate, number=stored.line, with_tokens=with_tokens
        )
    text = str(stored.error)
    return f"Left out: {text[text.find(f'line {stored.line}') :]}"
