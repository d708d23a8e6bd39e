"""The viewer's data of a run, read once in file order."""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec import Struct

from envkit.files import storage_errors
from envkit.metrics.aggregate import Aggregator
from envkit.metrics.facts import EpisodeFacts
from envkit.open_files import open_regular
from envkit.rollout.vocabulary_file import TokenText
from envkit.sinks.jsonl import METRICS_FILE
from envkit.success import finite
from envkit.text import counted, utf8
from envkit.trajectory.identity import SeenEpisodes, identity
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.storage import FILE_NAME, StoredLine, read_lines, trajectory_file
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.differences import Trace
from envkit.viewer.episodes import checked_row
from envkit.viewer.figures import figures
from envkit.viewer.rows import COLUMNS, EpisodeRow
from envkit.viewer.token_texts import TokenTexts, decoded_texts, run_texts

Source = str | os.PathLike[str] | Iterable[Trajectory]


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run to read once."""

    given: Source
    """A trajectory file, a run directory, or trajectories."""

    @property
    def file(self) -> Path | None:
        """The trajectory file; None for trajectories in memory."""
        if isinstance(self.given, (str, os.PathLike)):
            return trajectory_file(self.given)
        return None

    @property
    def origin(self) -> str:
        """Display name: folder and file, without the rest of the path."""
        file = self.file
        if file is None:
            return "trajectories in memory"
        return utf8("/".join(file.resolve().parts[-2:]))  # a name need not be valid UTF-8

    @property
    def name(self) -> str:
        """Name of the run directory, or of the file if it is not named like a run's file."""
        path = Path(self.origin)
        return path.parent.name if path.name == FILE_NAME else path.name

    def lines(self, numbers: Collection[int] | None = None) -> Iterator[StoredLine]:
        """Yield lines, readable or not.

        Args:
            numbers: Line numbers, from 1; None yields all lines.

        Raises:
            StorageError: The file itself cannot be read.
        """
        if isinstance(self.given, (str, os.PathLike)):
            yield from read_lines(self.given, numbers)
            return
        for number, trajectory in enumerate(self.given, start=1):
            if numbers is None or number in numbers:
                yield StoredLine(line=number, trajectory=trajectory, certificate=None)

    def empty(self) -> "RunData":
        """Return its index without an episode."""
        run = RunData(self.name)
        run.recorded = self.recorded_metrics()
        return run

    def traces(self, numbers: Collection[int]) -> dict[int, Trace]:
        """Read episodes again, to compare them.

        Args:
            numbers: Their line numbers. Trajectories in memory must be a collection, not an
                iterator.

        Raises:
            StorageError: The file itself cannot be read.
        """
        return {
            stored.line: Trace.of(stored.trajectory)
            for stored in self.lines(numbers)
            if stored.trajectory is not None
        }

    def image_folder(self) -> ImageFolder | None:
        """Return the folder of the image files; None for trajectories in memory."""
        file = self.file
        return None if file is None else ImageFolder(file.parent / IMAGE_FOLDER)

    def token_texts(
        self, token_ids: Collection[int], token_text: TokenText | None = None
    ) -> TokenTexts:
        """Return the texts of token ids.

        Args:
            token_ids: The ids to show.
            token_text: Returns the text of an id; None uses what is next to the trajectories.
        """
        file = self.file
        if token_text is not None:
            return decoded_texts(token_ids, token_text)
        if file is None or file.name != FILE_NAME:
            return TokenTexts()

        def open_file(name: str) -> BinaryIO:
            with storage_errors(f"cannot read {name}"):
                return open_regular(file.with_name(name), follow=False)

        return run_texts(token_ids, open_file)

    def recorded_metrics(self) -> dict[str, float]:
        """Return the metrics that the rollout wrote next to its trajectories; empty without any.

        Only the rollout itself knows its wall-clock time. A damaged file is ignored.
        """
        file = self.file
        if file is None or file.name != FILE_NAME:
            return {}
        try:
            with open_regular(file.parent / METRICS_FILE) as stream:
                return numbers_of(stream.read())
        except OSError:
            return {}


def unreadable(stored: StoredLine) -> str:
    """Return why a line is left out, without the local path."""
    text = str(stored.error)
    return f"Left out: {text[text.find(f'line {stored.line}') :]}"


def numbers_of(text: bytes) -> dict[str, float]:
    """Return the numbers of a JSON object by name; empty if the text is damaged."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    entries = cast("dict[str, Any]", found)
    return {
        name: number for name, value in entries.items() if (number := finite(value)) is not None
    }


class RowFacts(Struct, frozen=True, kw_only=True):
    """What one episode adds to the index of its run."""

    key: bytes | None
    """Its `identity`."""
    engine: str
    facts: EpisodeFacts
    row: EpisodeRow

    @classmethod
    def of(cls, trajectory: Trajectory, row: EpisodeRow) -> "RowFacts":
        """Return what a trajectory adds.

        Args:
            trajectory: The episode.
            row: Its row.
        """
        return cls(
            key=identity(trajectory),
            engine=trajectory.engine,
            facts=EpisodeFacts.of(trajectory),
            row=row,
        )


class RunData:
    """Collects the index of a run: a row per episode, and the figures.

    It does not keep trajectories, so a run can grow while it is shown.
    """

    def __init__(self, name: str) -> None:
        """Start an empty run.

        Args:
            name: Name of the run, unique in its viewer.
        """
        self.name = name
        self.rows: list[EpisodeRow] = []
        self.notes: list[str] = []
        """Problems, shown above the figures."""
        self.recorded: dict[str, float] = {}
        """The metrics that the rollout wrote, for the throughput; empty without any."""
        self.lag = 1.0
        """How much it may grow, as a factor, before its figures are made anew."""
        self.engines: dict[str, None] = {}
        self.aggregator = Aggregator()
        """The metrics of the episodes so far."""
        self._seen, self._has_repeats = SeenEpisodes(), False
        self._figures: dict[str, Any] = {}
        self._figures_of: tuple[int, dict[str, float]] | None = None
        """Number of episodes and recorded metrics in the cached figures."""

    def add(self, trajectory: Trajectory, row: EpisodeRow) -> bool:
        """Add one episode, unless it is there already; see `take`."""
        return self.take(RowFacts.of(trajectory, row))

    def take(self, one: RowFacts) -> bool:
        """Add the facts of one episode, unless it is there already.

        Returns:
            Whether it was added. The first one that was not gets a note.
        """
        if not self._seen.add(one.key):
            if not self._has_repeats:
                self.notes.append(f"Left out: repeated episodes, from line {one.row.number} on.")
            self._has_repeats = True
            return False
        self.aggregator.add(one.facts)
        self.engines.setdefault(one.engine)
        self.rows.append(one.row)
        return True

    @property
    def all_notes(self) -> list[str]:
        """The problems of the file, after those of the figures."""
        count = self.figures()["unsummable"]
        if not count:
            return self.notes
        rewards = counted(count, "reward")
        return [
            f"The figures leave out {rewards}, not finite or too large to average.",
            *self.notes,
        ]

    def figures(self) -> dict[str, Any]:
        """Return the figures of all episodes as JSON data, cached until something changes.

        With `lag`, those of the last episodes may be missing.
        """
        made_of = (len(self.rows), self.recorded)
        known = 0 if self._figures_of is None else self._figures_of[0]
        # They take time for every episode so far. Made anew for each part of a large run, they
        # would take longer than reading it.
        is_late = known < len(self.rows) <= self.lag * known
        if self._figures_of != made_of and not is_late:
            self._figures = {
                **figures(self.rows, self.aggregator, self.recorded),
                "engines": [engine for engine in self.engines if engine],
            }
            self._figures_of = made_of
        return self._figures

    def index(self, *, start: int = 0, most: int | None = None) -> dict[str, Any]:
        """Return the data of the front end's `run()`, as JSON data.

        Args:
            start: Number of rows that the caller already has; they are left out.
            most: Maximum number of rows; the figures count all. None lists all.
        """
        return {
            "name": self.name,
            "figures": self.figures(),
            "columns": COLUMNS,
            "rows": [row.to_json() for row in self.rows[start:most]],
            "notes": self.all_notes,
            "live": False,
        }


def read_run(source: Source) -> RunData:
    """Check every line of a run and return its index.

    Args:
        source: A trajectory file, a run directory, or trajectories.

    Raises:
        StorageError: The file cannot be read.
    """
    given = RunSource(source)
    run = given.empty()
    for stored in given.lines():
        if stored.trajectory is None:
            run.notes.append(unreadable(stored))
        else:
            run.add(stored.trajectory, checked_row(stored, stored.trajectory))
    return run
