"""The report of a run, and the comparison of two, as one self-contained HTML file."""

import os
from pathlib import Path
from typing import Final

from envkit.errors import StorageError
from envkit.ranges import at_least
from envkit.viewer.diff import compare_rows
from envkit.viewer.document import Decode, Document
from envkit.viewer.episodes import episode
from envkit.viewer.run import RunData, RunSource, Source, unreadable
from envkit.viewer.search import search_pieces

MAX_EPISODES: Final = 10_000
"""Default for the maximum number of episodes that one file lists per run."""


def write_report(
    source: Source,
    out_html: str | os.PathLike[str],
    *,
    decode: Decode | None = None,
    title: str | None = None,
    max_episodes: int = MAX_EPISODES,
) -> Path:
    """Write the report of a run.

    Args:
        source: A trajectory file, a run directory, or trajectories.
        out_html: The file to write.
        decode: Turns token ids into text, to show tokens as text; None shows ids.
        title: Title of the document; None uses the name of the run.
        max_episodes: Maximum number of episodes to list; the figures count all.

    Returns:
        The path of the report.

    Raises:
        StorageError: The source cannot be read or has no readable episode, or the report cannot be
            written.
        ConfigurationError: `max_episodes` is below 1.
    """
    at_least(1, max_episodes=max_episodes)
    document = Document()
    run = _read(RunSource(source), None, document, max_episodes)
    index = {"runs": [run.index(most=max_episodes)], "diff": None}
    name = title or f"Rollout report: {run.name}"
    return document.write(out_html, title=name, index=index, decode=decode)


def write_diff(
    first: Source,
    second: Source,
    out_html: str | os.PathLike[str],
    *,
    decode: Decode | None = None,
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
        decode: Turns token ids into text, to show tokens as text; None shows ids.
        title: Title of the document; None uses the names of both runs.
        max_episodes: Maximum number of episodes to list per run; the figures count all.

    Returns:
        The path of the page.

    Raises:
        StorageError: A run cannot be read or has no readable episode, or the page cannot be
            written.
        ConfigurationError: `max_episodes` is below 1, or the runs share no environment and seed.
    """
    at_least(1, max_episodes=max_episodes)
    document = Document()
    sources = [RunSource(_again(source)) for source in (first, second)]
    names = [source.name for source in sources]
    if names[0] == names[1]:
        names = [source.origin for source in sources]
    if names[0] == names[1]:
        names = [f"A: {names[0]}", f"B: {names[1]}"]
    runs = [_read(*entry, document, max_episodes) for entry in zip(sources, names, strict=True)]
    index = {
        "runs": [run.index(most=max_episodes) for run in runs],
        "diff": compare_rows(
            runs[0].rows,
            runs[1].rows,
            names,
            most=max_episodes,
            traces=[source.traces for source in sources],
        ),
    }
    name = title or f"What changed from {names[0]} to {names[1]}"
    return document.write(out_html, title=name, index=index, decode=decode)


def _again(source: Source) -> Source:
    """Return a source that can be read twice."""
    return source if isinstance(source, (str, os.PathLike)) else list(source)


def _read(source: RunSource, name: str | None, document: Document, max_episodes: int) -> RunData:
    """Read a run into the document.

    Raises:
        StorageError: It has no readable episode.
    """
    run = RunData(name or source.name)
    run.recorded = source.recorded_metrics()
    folder = source.image_folder()
    document.start_run()
    for stored in source.lines():
        if stored.trajectory is None:
            run.notes.append(unreadable(stored))
            continue
        found = episode(stored.trajectory, stored.certificate, number=stored.line, folder=folder)
        if run.add(stored.trajectory, found.row) and len(run.rows) <= max_episodes:
            document.add_episode(found, search_pieces(stored.trajectory), folder)
    if not run.rows:
        reason = f": {run.notes[0]}" if run.notes else ""
        place = source.given if isinstance(source.given, (str, os.PathLike)) else source.origin
        raise StorageError(f"{place!s} has no readable episode{reason}")
    if len(run.rows) > max_episodes:
        run.notes.insert(
            0,
            f"The figures count all {len(run.rows):,} episodes; the list shows the first "
            f"{max_episodes:,} and leaves out {len(run.rows) - max_episodes:,}.",
        )
    return run
