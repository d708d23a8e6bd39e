"""The index of a run that may be growing, read from the file as it is written.

Episodes are not kept in memory. The page of an episode reads its line again, by offset.
"""

import json
import math
import os
import stat
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from envkit.errors import ConfigurationError, EnvkitError, StorageError
from envkit.files import storage_errors
from envkit.rollout.plan import Shard
from envkit.rollout.vocabulary_file import TokenText
from envkit.text import counted
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.storage import FILE_NAME, parse_line
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.episodes import checked_row, episode
from envkit.viewer.folder import METRICS_FILE, NOTES_FILE, RUN_FILE, Folder
from envkit.viewer.growing_file import MAX_LINE_BYTES, FileLine, GrowingFile, is_locked, stamp_of
from envkit.viewer.rows import EpisodeRow
from envkit.viewer.run import RunData, numbers_of, unreadable
from envkit.viewer.run_notes import RunNotes, change_notes
from envkit.viewer.search import SearchText, search_pieces
from envkit.viewer.token_texts import decoded_texts, run_texts

_ROW_BYTES: Final = 8_000
"""Measured size of a row and of the figures' data for its episode."""
_FOREIGN: Final = (ArithmeticError, LookupError, TypeError, ValueError, RecursionError)
"""Exceptions from indexing data with an unexpected shape."""
_LAG_READING: Final = 1.25
_LAG_LIVE: Final = 1.01
_RECENT_S: Final = 30.0
_MAX_NOTES: Final = 50


class LiveRun:
    """One run of a folder. Safe to share between threads; every method may read files."""

    def __init__(self, name: str, path: Path, folder: Folder) -> None:
        """Start without reading the run.

        Args:
            name: Its unique name in the folder.
            path: Its own folder.
            folder: Opens its files.
        """
        self.name: Final = name
        self.path: Final = path
        self.epoch = time.time_ns() // 1_000_000
        """Increases when the file is replaced, which invalidates earlier rows. It starts at the
        current time, so a run that is deleted and played again gets a different epoch."""
        self.revision = 0
        """Increases with every change."""
        self.is_live = False
        """Whether a rollout is writing it."""
        self.modified = 0.0
        """When the trajectories were last written, in seconds since 1970; 0 if there are none."""
        self.bytes = 0
        """Size of the trajectories when they were last looked at."""
        self.settings: Mapping[str, Any] = {}
        """The settings that the rollout recorded; empty if there are none."""
        self.notes = RunNotes()
        """What people noted about it."""
        self._was_locked = self._has_grown = False
        """Whether a writer had locked the file, and whether the file grew, since the start."""
        self._exists, self._is_ended = True, False
        self._problem = ""
        """Why the file cannot be read; empty if it can, or does not exist yet."""
        self._folder = folder
        self._names = ImageFolder(path / IMAGE_FOLDER)
        """For the index, which opens no images."""
        self._images = folder.images(path)
        self._lock = threading.Lock()
        self._settings_stamp: tuple[int, ...] = ()
        self._notes_stamp: tuple[int, ...] = ()
        self._restart()

    def _restart(self) -> None:
        self._data = RunData(self.name)
        self._text = SearchText()
        self._places = array("Q")
        """Byte offset of each row's line."""
        self._file = GrowingFile()
        self._recorded_stamp: tuple[int, ...] = ()
        self._unlisted = 0
        """Number of skipped lines without a note."""

    @property
    def is_behind(self) -> bool:
        """Whether the file has lines that were not read yet."""
        return self._exists and self._file.is_behind

    @property
    def is_summed(self) -> bool:
        """Whether only its rollout's own metrics are known: it has ended and was not read yet."""
        return self._is_ended and self.is_behind

    @property
    def recorded(self) -> Mapping[str, float]:
        """The metrics that its rollout wrote; empty without any."""
        return self._data.recorded

    @property
    def lag(self) -> float:
        """How much it may grow, as a factor, before its figures are made anew."""
        if self.is_behind:
            return _LAG_READING
        return _LAG_LIVE if self.is_live else 1.0

    @property
    def count(self) -> int:
        """Episodes read so far."""
        return len(self._data.rows)

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return _ROW_BYTES * len(self._data.rows) + self._text.size

    @property
    def expected(self) -> int | None:
        """Number of episodes that the rollout plays; None if it was not recorded."""
        value, size = self.settings.get("episodes"), self.settings.get("group_size")
        if type(value) is not int or value <= 0:
            return None
        try:
            shard = Shard.parse(str(self.settings["shard"]))
        except (KeyError, ConfigurationError):
            return value
        return shard.share(value, size) if type(size) is int and size > 0 else value

    @property
    def step(self) -> float | None:
        """Training step in the metrics next to the run; None if there is none."""
        step = self._data.recorded.get("step")
        return step if step is not None and math.isfinite(step) else None

    def free(self) -> None:
        """Free the index; `refresh` reads it again."""
        with self._lock:
            self._replaced()

    def look(self, locked: frozenset[str]) -> bool:
        """Read what is known without any of its lines; return whether anything changed.

        Args:
            locked: As for `is_locked`.
        """
        with self._lock:
            before, was_ended = self.revision, self._is_ended
            self._read_settings()
            self._read_notes()
            self._read_recorded()
            try:
                found = (self.path / FILE_NAME).lstat()
            except OSError:  # `refresh` says why
                return self.revision != before
            self._see(found)
            episodes = self.recorded.get("episodes", 0)
            # Metrics of a trainer's step, and those from before a resume, are not of all lines.
            is_of_all = 0 < episodes <= (self.expected or 0)
            is_last = bool(self._recorded_stamp) and self._recorded_stamp[-1] >= found.st_mtime_ns
            is_file = stat.S_ISREG(found.st_mode)
            self._is_ended = is_file and is_of_all and is_last and not is_locked(found, locked)
            self.revision += self._is_ended != was_ended
            return self.revision != before

    def refresh(self, budget_s: float, locked: frozenset[str] | None = None) -> bool:
        """Read new lines; return whether anything changed.

        Args:
            budget_s: Approximate time to read, in seconds; `is_behind` says whether there is more.
            locked: As for `is_locked`.
        """
        with self._lock:
            before, was_behind = self.revision, self.is_behind
            self._read_settings()
            self._read_notes()
            try:
                with self._folder.open(self.path / FILE_NAME) as stream, storage_errors("disk"):
                    self._catch_up(stream, budget_s, locked)
                self._set_problem("", exists=True)
            except StorageError as error:
                # It was read before, so it is gone or was replaced: its rows are no longer true.
                if self._file.end:
                    self._replaced()
                is_named = os.path.lexists(self.path / FILE_NAME)  # else not created yet, or gone
                self._set_problem(str(error) if is_named else "", exists=False)
                self._set_live(False)
                self._data.lag = self.lag
            self.revision += self.is_behind != was_behind  # can change without a new line
            return self.revision != before

    def _set_problem(self, text: str, *, exists: bool) -> None:
        self.revision += (text, exists) != (self._problem, self._exists)
        self._problem, self._exists = text, exists

    def _catch_up(self, stream: BinaryIO, budget_s: float, locked: frozenset[str] | None) -> None:
        found = os.fstat(stream.fileno())
        if self._file.has_changed(found):
            if self._file.is_replaced(stream, found):
                self._replaced()
            self._see(found)
            for line in self._file.read(stream, found, budget_s):
                self._take(line)
        # Who writes it matters once its lines were read; asking after every part takes long.
        if not self._file.is_behind:
            self._set_live(self._has_writer(found, locked))
        self._data.lag = self.lag

    def _see(self, found: os.stat_result) -> None:
        """Note the size and the date of the trajectories."""
        self.revision += self.modified != found.st_mtime
        self._has_grown |= self.modified not in (0.0, found.st_mtime)
        self.modified, self.bytes = found.st_mtime, found.st_size

    def _has_writer(self, found: os.stat_result, locked: frozenset[str] | None) -> bool:
        """Whether a rollout is writing the file.

        The file's lock shows it. A writer on another machine has no lock here; its file grows.
        """
        is_held = is_locked(found, locked)
        self._was_locked |= is_held
        # A file that was locked here has its writer here. Only growth that was seen counts: a
        # copied file may have a recent date.
        if is_held or self._was_locked or not self._has_grown:
            return is_held
        is_done = self.expected is not None and len(self._data.rows) >= self.expected
        return time.time() - found.st_mtime < _RECENT_S and not is_done

    def _replaced(self) -> None:
        self.epoch += 1
        self.revision += 1
        self._restart()

    def _set_live(self, is_live: bool) -> None:
        if is_live != self.is_live:
            self.is_live = is_live
            self.revision += 1
        # A rollout writes its metrics when it ends.
        if not is_live:
            self._read_recorded()

    def _take(self, line: FileLine) -> None:
        self.revision += 1
        if line.data is None:
            self._note(f"Left out: line {line.number} is longer than {MAX_LINE_BYTES >> 20} MiB.")
            return
        if not line.data.strip():
            return
        stored = parse_line(self.path / FILE_NAME, line.number, line.data, self._names)
        if stored.trajectory is None:
            self._note(unreadable(stored))
            return
        try:
            row, pieces = checked_row(stored, stored.trajectory), search_pieces(stored.trajectory)
            if not self._data.add(stored.trajectory, row):
                return
        # One hostile line must not blank the table of runs.
        except (EnvkitError, *_FOREIGN) as error:
            self._note(f"Left out: line {line.number} cannot be shown: {type(error).__name__}.")
            return
        self._places.append(line.start)
        self._text.add(line.number, pieces)

    def _note(self, text: str) -> None:
        if len(self._data.notes) < _MAX_NOTES:
            self._data.notes.append(text)
        else:
            self._unlisted += 1

    def _read_settings(self) -> None:
        """Read run.json if it changed."""
        file = self.path / RUN_FILE
        try:
            stamp = stamp_of(file.stat())
            if stamp == self._settings_stamp:
                return
            # Before the file is read: one that cannot be read is tried again only when it changes.
            self._settings_stamp = stamp
            document: Any = json.loads(self._folder.read_json(file))
            settings: Any = document["settings"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            settings = {}
        given = cast("dict[str, Any]", settings) if isinstance(settings, dict) else {}
        if given != self.settings:
            self.settings = given
            self.revision += 1

    def annotate(self, before: RunNotes, after: RunNotes) -> RunNotes:
        """Change the notes and return the new ones; arguments and errors as for `change_notes`.

        Raises:
            StorageError: Also if the run's folder is gone or is outside the folder that is shown.
        """
        made = change_notes(self._folder.own(self.path) / NOTES_FILE, before, after)
        with self._lock:
            self._read_notes()
        return made

    def _read_notes(self) -> None:
        """Read notes.json if it changed; a file that holds no notes counts as empty."""
        file = self.path / NOTES_FILE
        try:
            stamp = stamp_of(file.stat())
            if stamp == self._notes_stamp:
                return
            self._notes_stamp = stamp
            notes = RunNotes.parse(self._folder.read_json(file))
        except (OSError, ConfigurationError):
            notes = RunNotes()
        self.revision += notes != self.notes
        self.notes = notes

    def _read_recorded(self) -> None:
        """Read the metrics that the rollout wrote, if they changed."""
        file = self.path / METRICS_FILE
        try:
            stamp = stamp_of(file.stat())
            if stamp == self._recorded_stamp:
                return
            self._recorded_stamp = stamp
            self._data.recorded = numbers_of(self._folder.read_json(file))
        except OSError:
            self._data.recorded = {}
        self.revision += bool(self._data.recorded)

    def index(self, *, since: int = 0, epoch: int | None = None) -> dict[str, Any]:
        """Return the data of the front end's `run()`, as JSON data.

        Args:
            since: Number of rows that the caller already has; they are left out.
            epoch: Epoch of those rows; if it differs from the run's, all rows are returned.
        """
        with self._lock:
            start = since if epoch == self.epoch else 0
            return {
                **self._data.index(start=start),
                "from": start,
                "epoch": self.epoch,
                "revision": self.revision,
                "notes": [*self._state_notes(), *self._data.all_notes],
                "live": self.is_live or self.is_behind,
                "expected": self.expected,
            }

    def figures(self) -> dict[str, Any]:
        """Return the figures of the episodes read so far."""
        with self._lock:
            return self._data.figures()

    def rows(self) -> list[EpisodeRow]:
        """Return the rows read so far."""
        with self._lock:
            return list(self._data.rows)

    def _state_notes(self) -> list[str]:
        notes: list[str] = []
        count = len(self._data.rows)
        if self.is_behind:
            share = math.floor(100 * self._file.share)
            notes.append(f"Still reading, {share}% so far: these are the first {count:,} episodes.")
        elif self._file.is_cut and not self.is_live:
            notes.append(f"Line {self._file.count + 1} is cut off: its writer was stopped.")
        if self._problem:
            notes.append(f"The trajectories cannot be read: {self._problem}.")
        if self._unlisted:
            notes.append(f"Left out: {counted(self._unlisted, 'more line')}, not listed below.")
        if self._text.left_out:
            kept = count - self._text.left_out
            notes.append(f"Search covers only the first {kept:,} episodes: the run is too large.")
        return notes

    def episode(self, number: int, token_text: TokenText | None = None) -> dict[str, Any] | None:
        """Return the data of one episode and of its `TokenTexts`; None if there is no such episode.

        Args:
            number: Its line, from 1.
            token_text: Returns the text of a token id; None uses the texts that the run stored.

        Raises:
            StorageError: The file has changed, or cannot be read.
        """
        found = self._stored(number)
        if found is None:
            return None
        _, trajectory, certificate = found
        shown = episode(trajectory, certificate, number=number, folder=self._images)
        if token_text is not None:
            texts = decoded_texts(shown.token_ids, token_text)
        else:
            texts = run_texts(shown.token_ids, lambda name: self._folder.open(self.path / name))
        return {**shown.data, **texts.data()}

    def record(self, number: int) -> bytes | None:
        """Return the line of one episode as the file has it; arguments and errors as above."""
        found = self._stored(number)
        return None if found is None else found[0]

    def _stored(self, number: int) -> tuple[bytes, Trajectory, Certificate | None] | None:
        """Read one line; None if there is no such episode."""
        with self._lock:
            at = bisect_left(self._data.rows, number, key=lambda row: row.number)
            if at == len(self._data.rows) or self._data.rows[at].number != number:
                return None
            place = self._places[at]
        with self._folder.open(self.path / FILE_NAME) as stream:
            stream.seek(place)
            line = stream.readline(MAX_LINE_BYTES)
        stored = parse_line(self.path / FILE_NAME, number, line, self._images)
        if stored.trajectory is None:
            raise StorageError("the run's file has changed; reload the page")
        return line, stored.trajectory, stored.certificate

    def search(self, query: str) -> dict[int, dict[str, Any]]:
        """Return the first hit in each episode; see `SearchText.find`."""
        with self._lock:
            return self._text.find(query)
