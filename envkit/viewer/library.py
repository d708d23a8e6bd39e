"""Finds all runs of a folder, reads them in small steps, and summarizes them in a table."""

import time
from pathlib import PurePosixPath
from typing import Any, Final

from envkit.rollout.vocabulary_file import TokenText
from envkit.viewer.documents import read_document
from envkit.viewer.folder import Folder, Found
from envkit.viewer.growing_file import locked_files, stamp_of
from envkit.viewer.live_run import LiveRun
from envkit.viewer.run_notes import RunNotes
from envkit.viewer.summary import recorded, state_of, summary

MAX_BYTES: Final = 768 << 20
"""Memory limit for the indexes of runs; beyond it, the least recently requested ones are freed."""
_SCAN_S: Final = 2.0
_SLICE_S: Final = 0.1
"""How long one step reads; a request waits at most that long."""
_UNASKED_BYTES: Final = 16 << 20
"""Larger runs that have ended are read when somebody asks for them."""
_WATCHED_S: Final = 60.0
"""How long a run counts as watched after a request for it."""


class Library:
    """The runs inside a folder. `step` reads them; the other methods return what it has read."""

    def __init__(
        self, folder: Folder, *, token_text: TokenText | None = None, takes_notes: bool = False
    ) -> None:
        """Start without reading the folder.

        Args:
            folder: Opens its files.
            token_text: Returns the text of a token id; None uses the texts that each run stored.
            takes_notes: Whether people may change the notes and tags of runs, which are files in
                the folder.
        """
        self.token_text: Final = token_text
        self.takes_notes: Final = takes_notes
        self.folder: Final = folder
        self.version = 0
        """Increases with every change of any run or document."""
        self._runs: dict[str, LiveRun] = {}
        self._requested: dict[str, float] = {}
        """Time of the last request for each run."""
        self._summaries: dict[str, tuple[int, dict[str, Any]]] = {}
        """Summary of each run, with its revision."""
        self._freed: set[str] = set()
        """Runs whose index was freed."""
        self._documents: dict[str, tuple[Any, dict[str, Any] | None]] = {}
        self._note = ""
        self._is_scanned = False
        self._next_scan = 0.0

    def step(self) -> bool:
        """Scan for new runs if due, else read the next part; return whether there is more to do.

        Reading takes about 0.1 seconds. Only one thread at a time may call it.
        """
        now = time.monotonic()
        if now >= self._next_scan:
            self._scan(self.folder.find())
            self._check_all()
            taken = time.monotonic() - now
            # A large folder on a slow disk must not keep the thread busy with looking for runs.
            self._next_scan = time.monotonic() + max(_SCAN_S, 10 * taken)
            return True
        behind = [run for run in self._runs.values() if self._is_wanted(run)]
        if not behind:
            self._check_watched()
            return False
        # What somebody is looking at comes first, then the newest run.
        chosen = max(behind, key=lambda run: (self._requested.get(run.name, 0.0), run.modified))
        self._refresh(chosen, _SLICE_S)
        self._shrink()
        return True

    @property
    def is_empty(self) -> bool:
        """Whether no run has been found so far."""
        return not self._runs

    def _is_wanted(self, run: LiveRun) -> bool:
        if not run.is_behind or run.name in self._freed:
            return False
        return run.name in self._requested or not run.is_summed or run.bytes <= _UNASKED_BYTES

    def _refresh(self, run: LiveRun, budget_s: float) -> None:
        if run.refresh(budget_s):
            self.version += 1

    def _check_all(self) -> None:
        """Check which runs grew; only look at those that still have unread lines anyway."""
        locked = locked_files()
        for run in list(self._runs.values()):
            has_changed = run.look(locked) if run.is_behind else run.refresh(0.01, locked)
            self.version += has_changed

    def _check_watched(self) -> None:
        now = time.monotonic()
        for name, asked in list(self._requested.items()):
            run = self._runs.get(name)
            if run is not None and now - asked < _WATCHED_S and name not in self._freed:
                self._refresh(run, 0.02)

    def _scan(self, found: Found) -> None:
        before = self._runs
        self._runs = {
            name: known
            if (known := before.get(name)) is not None and known.path == path
            else LiveRun(name, path, self.folder)
            for name, path in sorted(found.runs.items())
        }
        changed = before.keys() != self._runs.keys()
        for name in before.keys() - self._runs.keys():
            self._summaries.pop(name, None)
            self._freed.discard(name)
            self._requested.pop(name, None)
        changed |= self._read_documents(found)
        changed |= found.note != self._note or not self._is_scanned
        self._note, self._is_scanned = found.note, True
        self.version += changed

    def _read_documents(self, found: Found) -> bool:
        known: dict[str, tuple[Any, dict[str, Any] | None]] = {}
        for name, path in sorted(found.documents.items()):
            try:
                stamp = stamp_of(path.stat())
                old = self._documents.get(name)
                if old is not None and old[0] == stamp:
                    known[name] = old
                    continue
                known[name] = (stamp, read_document(self.folder.read_json(path)))
            except OSError:
                continue
        changed = known != self._documents
        self._documents = known
        return changed

    def _shrink(self) -> None:
        """Free the least recently requested indexes if they use too much memory; keep summaries."""
        held = {name: run.size for name, run in self._runs.items() if name not in self._freed}
        total = sum(held.values())
        for name in sorted(held, key=lambda name: self._requested.get(name, 0.0)):
            run = self._runs[name]
            if total <= MAX_BYTES or len(held) == 1:
                return
            # They would be read again at once.
            if run.is_behind or run.is_live:
                continue
            # The table still needs it after the index is gone.
            self._summary(run)
            self._freed.add(name)
            run.free()
            total -= held.pop(name)

    def run(self, name: str) -> LiveRun | None:
        """Return a run and read it before others from now on; None if there is no such run."""
        run = self._runs.get(name)
        if run is None:
            return None
        self._requested[name] = time.monotonic()
        self._freed.discard(name)
        return run

    def state(self) -> dict[str, Any]:
        """Return the version, and the revision of each run by name."""
        revisions = {name: run.revision for name, run in self._runs.items()}
        return {"version": self.version, "revisions": revisions}

    def overview(self) -> dict[str, Any]:
        """Return the table of runs and the other documents, as JSON data."""
        version = self.version  # read first, so that a page still hears of later changes
        runs = [{**self._summary(run), **run.notes.to_json()} for run in list(self._runs.values())]
        documents = [
            {"name": name, **data}
            for name, (_, data) in list(self._documents.items())
            if data is not None
        ]
        return {
            "folder": PurePosixPath(self.folder.root).name,
            "version": version,
            "is_scanned": self._is_scanned,
            "takes_notes": self.takes_notes,
            "note": self._note,
            "runs": runs,
            "documents": documents,
        }

    def metrics(self) -> dict[str, Any]:
        """Return every metric of every run, as JSON data: names, and values by run.

        At most 400 metrics of a run are included. A value is None if the run lacks the metric.
        """
        found = {run.name: recorded(run) for run in list(self._runs.values())}
        names = sorted({name for metrics in found.values() for name in metrics})
        values = {run: [metrics.get(name) for name in names] for run, metrics in found.items()}
        return {"names": names, "runs": values}

    def annotate(self, run: LiveRun, before: RunNotes, after: RunNotes) -> RunNotes:
        """Change the notes of a run and return the new ones; errors as for `change_notes`."""
        made = run.annotate(before, after)
        self.version += 1
        return made

    def _summary(self, run: LiveRun) -> dict[str, Any]:
        kept = self._summaries.get(run.name)
        if kept is not None and (kept[0] == run.revision or run.name in self._freed):
            return kept[1]
        if kept is not None and kept[1]["state"] == state_of(run):
            known, count = kept[1]["episodes"], run.count
            if known < count <= run.lag * known:
                return {**kept[1], "episodes": count}
        # Before the summary: a change meanwhile makes it out of date.
        revision = run.revision
        made = summary(run)
        self._summaries[run.name] = (revision, made)
        return made
