"""What the end of a run needs of its episodes, collected while they are written.

A run of 100,000 episodes need not read its file again to check and report it: every record is
checked, counted and, if the report lists it, rendered while it is in memory. If the file does not
hold exactly what was collected, the check and the report read it.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs

from envkit.cli.digest_file import DIGEST_FILE, DigestEntry, DigestFile, KeptPage
from envkit.closing import Closing
from envkit.files import storage_errors
from envkit.metrics import Aggregator, EpisodeFacts
from envkit.rollout.vocabulary_file import VOCABULARY_FILE, VocabularyWriter
from envkit.trajectory import Trajectory, VerifyReport, verify_file
from envkit.trajectory.checks import check_trajectory
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.storage import (
    FILE_NAME,
    PreparedTrajectory,
    StoredLine,
    parse_line,
    read_lines,
)
from envkit.trajectory.verify import FileCheck, RowCheck, certificate_problems
from envkit.viewer import write_report
from envkit.viewer.document import Document, Page
from envkit.viewer.episodes import Checked, used_ids
from envkit.viewer.run import RunSource
from envkit.viewer.single_file import RunPages

_BASE64: Final = re.compile("[A-Za-z0-9+/=]*")
_HASH: Final = re.compile("[0-9a-f]{64}")


class RunDigest(Closing):
    """Collects the metrics, the check and the report of a run, in the order of its file."""

    def __init__(self, directory: Path, *, is_resumed: bool) -> None:
        """Start with no episodes.

        Args:
            directory: The run directory, with its trajectory file.
            is_resumed: Whether the file has episodes of an earlier command; see `stored`.
        """
        self._directory: Final = directory
        self._images = ImageFolder(directory / IMAGE_FOLDER)
        self._pages = RunPages(RunSource(directory), Document())
        self._check = FileCheck(lambda numbers: read_lines(directory, numbers))
        self._kept = DigestFile(directory / DIGEST_FILE, is_new=not is_resumed)
        self.vocabulary: Final = VocabularyWriter(
            directory / VOCABULARY_FILE, is_new=not is_resumed
        )
        self._lines = self._size = 0
        self._must_read = False
        """Whether the check and the report need what only the file has."""
        self._own_metrics: Aggregator | None = None
        """The metrics if they count other episodes than the report; None while they are equal."""

    @property
    def metrics(self) -> Aggregator:
        """The metrics of all records."""
        return self._own_metrics or self._pages.aggregator

    def stored(self) -> Iterator[EpisodeFacts]:
        """Add the records of earlier commands, and yield their facts.

        Raises:
            StorageError: The file or a line cannot be read.
        """
        file = self._directory / FILE_NAME
        with storage_errors(f"cannot read {file}"), file.open("rb") as stream:
            for line in stream:
                self._lines += 1
                self._size += len(line)
                if line.strip():
                    yield self._add_stored(file, line)

    def add(self, trajectory: Trajectory, prepared: PreparedTrajectory) -> EpisodeFacts:
        """Add a record that was just written, and return its facts."""
        self._lines += 1
        self._size += len(prepared.line)
        self.vocabulary.add(used_ids(trajectory))
        try:
            entry, page = self._written(trajectory, prepared)
        except Exception:  # noqa: BLE001  # what a page shows may be foreign; the file has the record
            self._must_read = True
            self._own_metrics = self._own_metrics or copy.deepcopy(self._pages.aggregator)
            facts = EpisodeFacts.of(trajectory)
            self._own_metrics.add(facts)
            return facts
        self._kept.add(prepared.line, entry)
        return self._take(entry, page)

    def checked(self) -> VerifyReport:
        """Return the result of the check; the file is only read if it must be.

        Raises:
            StorageError: The file cannot be read.
        """
        file = self._directory / FILE_NAME
        with storage_errors(f"cannot read {file}"):
            self._must_read = self._must_read or file.stat().st_size != self._size
        return verify_file(file) if self._must_read else self._check.finished(file)

    def write_report(self, out_html: Path) -> None:
        """Write the report.

        Raises:
            StorageError: It cannot be written.
        """
        if self._must_read:
            write_report(self._directory, out_html, token_text=self.vocabulary.token_text)
        else:
            self._pages.write(out_html, token_text=self.vocabulary.token_text)

    @property
    def is_from_memory(self) -> bool:
        """Whether the records were checked as they were written."""
        return not self._must_read

    def close(self) -> None:
        """Write the vocabulary and close the file of the entries; closing twice is fine."""
        self.vocabulary.write()
        self._kept.close()

    def _written(
        self, trajectory: Trajectory, prepared: PreparedTrajectory
    ) -> tuple[DigestEntry, Page | None]:
        assert prepared.certificate is not None  # a run's own line
        checked = Checked.written(check_trajectory(trajectory), prepared.certificate)
        return self._entry(trajectory, checked, RowCheck.of(trajectory, checked.problems))

    def _entry(
        self, trajectory: Trajectory, checked: Checked, check: RowCheck
    ) -> tuple[DigestEntry, Page | None]:
        index, page = self._pages.entry(trajectory, checked, self._lines)
        return DigestEntry(index=index, check=check, page=_kept(page)), page

    def _add_stored(self, file: Path, line: bytes) -> EpisodeFacts:
        entry = self._kept.find(line)
        if entry is not None and self._is_usable(entry):
            row = structs.replace(entry.index.row, number=self._lines)
            entry = replace(entry, index=structs.replace(entry.index, row=row))
            if entry.page is not None:
                self.vocabulary.add(entry.page.token_ids)
            return self._take(entry, self._page(entry.page))
        entry, page = self._computed(parse_line(file, self._lines, line, self._images))
        self._kept.add(line, entry)
        return self._take(entry, page)

    def _computed(self, stored: StoredLine) -> tuple[DigestEntry, Page | None]:
        trajectory, recorded = stored.trajectory, stored.certificate
        if trajectory is None or recorded is None:
            assert stored.error is not None
            raise stored.error
        self.vocabulary.add(used_ids(trajectory))
        checked = Checked.of(trajectory, recorded)
        problems = (*checked.problems, *certificate_problems(trajectory, recorded))
        return self._entry(trajectory, checked, RowCheck.of(trajectory, problems))

    def _is_usable(self, entry: DigestEntry) -> bool:
        """Whether the entry can be shown, and has the page of its line if the report lists it."""
        page, hashes = entry.page, entry.check.images
        if page is None:
            return self._pages.is_full and all(map(_HASH.fullmatch, hashes))
        is_plain = _BASE64.fullmatch(page.packed) is not None  # else it could hold markup
        is_here = entry.index.row.number == self._lines or self._pages.is_full
        return is_plain and is_here and all(map(_HASH.fullmatch, (*hashes, *page.images)))

    def _page(self, kept: KeptPage | None) -> Page | None:
        if kept is None or self._pages.is_full:
            return None
        images = tuple(self._images.read(sha256) for sha256 in kept.images)
        return Page(packed=kept.packed, pieces=kept.pieces, images=images, token_ids=kept.token_ids)

    def _take(self, entry: DigestEntry, page: Page | None) -> EpisodeFacts:
        self._must_read = self._must_read or entry.check.is_fork  # its parent's tokens are needed
        self._check.add_row(entry.check, self._lines, self._images.read)
        is_new = self._pages.add(entry.index, page)
        if self._own_metrics is None and not is_new:
            self._own_metrics = copy.deepcopy(self._pages.aggregator)
        if self._own_metrics is not None:
            self._own_metrics.add(entry.index.facts)
        return entry.index.facts


def _kept(page: Page | None) -> KeptPage | None:
    if page is None:
        return None
    images = tuple(image.sha256 for image in page.images)
    return KeptPage(packed=page.packed, pieces=page.pieces, images=images, token_ids=page.token_ids)
