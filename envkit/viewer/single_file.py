"""The report of a run, and the comparison of two, as one self-contained HTML file."""

import os
from pathlib import Path
from typing import Final

from envkit.errors import StorageError
from envkit.metrics.aggregate import Aggregator
from envkit.ranges import at_least
from envkit.rollout.vocabulary_file import TokenText
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.diff import compare_rows
from envkit.viewer.document import Document, Page
from envkit.viewer.episodes import Checked, checked_row
from envkit.viewer.run import RowFacts, RunData, RunSource, Source, unreadable
from envkit.viewer.token_texts import TokenTexts

MAX_EPISODES: Final = 10_000
"""Default for the maximum number of episodes that one file lists per run."""
MAX_CHARACTERS = 128 << 20
"""Characters of listed episodes, without images, from which one file lists no further ones."""


def write_report(
    source: Source,
    out_html: str | os.PathLike[str],
    *,
    token_text: TokenText | None = None,
    title: str | None = None,
    max_episodes: int = MAX_EPISODES,
) -> Path:
    """Write the report of a run.

    Args:
        source: A trajectory file, a run directory, or trajectories.
        out_html: The file to write.
        token_text: Returns the text of a token id; None uses the texts that the run stored.
        title: Title of the document; None uses the name of the run.
        max_episodes: Maximum number of episodes to list; the figures count all.

    Returns:
        The path of the report.

    Raises:
        StorageError: The source cannot be read or has no readable episode, or the report cannot be
            written.
        ConfigurationError: `max_episodes` is below 1.
    """
    pages = RunPages(RunSource(source), Document(), max_episodes=max_episodes)
    pages.add_all()
    return pages.write(out_html, token_text=token_text, title=title)


def write_diff(
    first: Source,
    second: Source,
    out_html: str | os.PathLike[str],
    *,
    token_text: TokenText | None = None,
    title: str | None = None,
    max_episodes: int = MAX_EPISODES,
) -> Path:
    """Write the comparison of two runs.

    Episodes are matched by environment and seed; see `envkit.viewer.pairs`. Differences are second
    run minus first.

    Args:
        first: A trajectory file, a run directory, or trajectories.
        second: The run to compare it with, in the same form.
        out_html: The file to write.
        token_text: Returns the text of a token id; None uses the texts that the run stored.
        title: Title of the document; None uses the names of both runs.
        max_episodes: Maximum number of episodes to list per run; the figures count all.

    Returns:
        The path of the page.

    Raises:
        StorageError: A run cannot be read or has no readable episode, or the page cannot be
            written.
        ConfigurationError: `max_episodes` is below 1, or the runs share no environment and seed.
    """
    document = Document()
    sources = [RunSource(_again(source)) for source in (first, second)]
    names = [source.name for source in sources]
    if names[0] == names[1]:
        names = [source.origin for source in sources]
    if names[0] == names[1]:
        names = [f"A: {names[0]}", f"B: {names[1]}"]
    built = [
        RunPages(source, document, name=name, max_episodes=max_episodes)
        for source, name in zip(sources, names, strict=True)
    ]
    for one in built:
        one.add_all()
    runs = [one.finished() for one in built]
    index = {
        "runs": [run.index(most=one.most) for one, run in zip(built, runs, strict=True)],
        "diff": compare_rows(
            runs[0].rows,
            runs[1].rows,
            names,
            most=min(one.most for one in built),
            traces=[source.traces for source in sources],
        ),
    }
    name = title or f"What changed from {names[0]} to {names[1]}"
    texts = [one.token_texts(token_text) for one in built]
    return document.write(out_html, title=name, index=index, texts=texts)


def _again(source: Source) -> Source:
    """Return a source that can be read twice."""
    return source if isinstance(source, (str, os.PathLike)) else list(source)


class RunPages:
    """Collects a run for one file: a row for each episode, and a page for each one it lists."""

    def __init__(
        self,
        source: RunSource,
        document: Document,
        *,
        max_episodes: int = MAX_EPISODES,
        name: str | None = None,
    ) -> None:
        """Start with no episodes.

        Args:
            source: The run.
            document: Gets the pages; runs are added one after the other.
            max_episodes: Maximum number of episodes to list; the figures count all.
            name: Name of the run; None uses the source's.

        Raises:
            StorageError: The source does not exist.
            ConfigurationError: `max_episodes` is below 1.
        """
        at_least(1, max_episodes=max_episodes)
        self._source, self._document, self._max = source, document, max_episodes
        self._folder = source.image_folder()
        self._data = RunData(name or source.name)
        self._listed = 0
        self._token_ids: set[int] | None = None
        """Ids of the listed episodes; None before the first one."""

    @property
    def is_full(self) -> bool:
        """Whether the next episode gets no page."""
        return self._listed >= self._max or self._document.size >= MAX_CHARACTERS

    @property
    def most(self) -> int:
        """Maximum number of episodes to list."""
        return self._listed if self.is_full else self._max

    @property
    def aggregator(self) -> Aggregator:
        """The metrics of the episodes so far."""
        return self._data.aggregator

    def add_all(self) -> None:
        """Check and add every line of the source.

        Raises:
            StorageError: The file itself cannot be read, or JSON cannot represent a free-form part.
        """
        for stored in self._source.lines():
            if stored.trajectory is None:
                self._data.notes.append(unreadable(stored))
            elif self.is_full:
                self.add(RowFacts.of(stored.trajectory, checked_row(stored, stored.trajectory)))
            else:
                checked = Checked.of(stored.trajectory, stored.certificate)
                self.add(*self.entry(stored.trajectory, checked, stored.line))

    def entry(
        self, trajectory: Trajectory, checked: Checked, number: int
    ) -> tuple[RowFacts, Page | None]:
        """Return what an episode adds, to pass to `add`.

        Args:
            trajectory: The episode.
            checked: What its check found.
            number: Its line in the file, from 1.

        Raises:
            StorageError: JSON cannot represent a free-form part.
        """
        row = checked.row(trajectory, number)
        page = None if self.is_full else Page.of(trajectory, checked, row, self._folder)
        return RowFacts.of(trajectory, row), page

    def add(self, one: RowFacts, page: Page | None = None) -> bool:
        """Add an episode, unless it is there already; return whether it was added.

        Args:
            one: What it adds to the index.
            page: Its page; None leaves it out of the list.
        """
        if self._token_ids is None:
            self._token_ids = self._document.start_run()
        is_new = self._data.take(one)
        if is_new and page is not None:
            self._listed += 1
            self._document.add_episode(one.row.number, page, self._folder)
        return is_new

    def finished(self) -> RunData:
        """Return the index of the run, with notes about what the list leaves out.

        Raises:
            StorageError: The run has no readable episode.
        """
        run = self._data
        run.recorded = self._source.recorded_metrics()
        if not run.rows:
            reason = f": {run.notes[0]}" if run.notes else ""
            given = self._source.given
            place = given if isinstance(given, (str, os.PathLike)) else self._source.origin
            raise StorageError(f"{place!s} has no readable episode{reason}")
        if len(run.rows) > self._listed:
            run.notes.insert(
                0,
                f"The figures count all {len(run.rows):,} episodes; the list shows the first "
                f"{self._listed:,} and leaves out {len(run.rows) - self._listed:,}.",
            )
        return run

    def token_texts(self, token_text: TokenText | None) -> TokenTexts:
        """Return the texts of the listed episodes; see `RunSource.token_texts`."""
        return self._source.token_texts(self._token_ids or (), token_text)

    def write(
        self,
        out_html: str | os.PathLike[str],
        *,
        token_text: TokenText | None = None,
        title: str | None = None,
    ) -> Path:
        """Write the report of the run alone; see `write_report`.

        Raises:
            StorageError: The run has no readable episode, or the report cannot be written.
        """
        run = self.finished()
        index = {"runs": [run.index(most=self.most)], "diff": None}
        name = title or f"Rollout report: {run.name}"
        texts = [self.token_texts(token_text)]
        return self._document.write(out_html, title=name, index=index, texts=texts)
