"""The report of one run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from envkit.errors import ConfigurationError, StorageError
from envkit.metrics.aggregate import Aggregator
from envkit.report import overview
from envkit.report.document import Decode, Document
from envkit.report.episodes import Episode
from envkit.report.facts import ROW, EpisodeFacts
from envkit.report.markup import safe_html
from envkit.report.source import RunSource, Source, draw_line
from envkit.trajectory.image_folder import ImageFolder

MAX_EPISODES: Final = 10_000
"""So many episodes one page shows one by one unless it is told otherwise."""


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
        title: Of the page; None names the source.
        max_episodes: So many episodes are in the file one by one; the figures are of all.

    Returns:
        The path of the report.

    Raises:
        StorageError: The source cannot be read or has no readable episode, or the report cannot be
            written.
        ConfigurationError: `max_episodes` below 1.
    """
    check_max_episodes(max_episodes)
    run = RunSource(source)
    origin = run.origin
    report = _Report(max_episodes, with_tokens=decode is not None)
    report.read(run)
    check_not_empty(run, report.document.notes, is_empty=not report.environments)
    fields = {
        "title": safe_html(title or f"Rollout report: {run.name}"),
        "subtitle": safe_html(f"{', '.join(report.environments) or 'no episode'} · {origin}"),
        **report.fields(run),
    }
    report.explain()
    return report.document.write(out_html, fields, report.index(), decode)


def check_max_episodes(max_episodes: int) -> None:
    """Refuse a page without any episode.

    Raises:
        ConfigurationError: The number is below 1.
    """
    if max_episodes < 1:
        raise ConfigurationError(f"max_episodes must be at least 1, got {max_episodes}")


def check_not_empty(run: RunSource, notes: Sequence[str], *, is_empty: bool) -> None:
    """Refuse a run without a readable episode.

    Args:
        run: What was read.
        notes: Why its lines cannot be read.
        is_empty: Whether no episode was read.

    Raises:
        StorageError: No episode was read.
    """
    if is_empty:
        reason = f": {notes[0]}" if notes else ""
        raise StorageError(f"{run.origin} holds no readable episode{reason}")


class _Report:
    def __init__(self, max_episodes: int, *, with_tokens: bool) -> None:
        self.document = Document("report")
        self.environments: dict[str, None] = {}
        self._max_episodes = max_episodes
        self._with_tokens = with_tokens
        self._aggregator = Aggregator()
        self._facts: list[EpisodeFacts] = []
        self._left_out = 0
        self._broken = 0

    def read(self, run: RunSource) -> None:
        folder = run.image_folder()
        for stored in run.lines():
            if stored.trajectory is not None:
                self._aggregator.add(stored.trajectory)
                self.environments.setdefault(stored.trajectory.env_id)
                if len(self._facts) >= self._max_episodes:
                    self._left_out += 1
                    continue
            drawn = draw_line(stored, with_tokens=self._with_tokens)
            if isinstance(drawn, str):
                self.document.notes.append(drawn)
            else:
                self._add(drawn, folder)

    def _add(self, episode: Episode, folder: ImageFolder | None) -> None:
        self._facts.append(episode.facts)
        self._broken += episode.is_broken
        self.document.add_episode(f"e{episode.facts.number}", episode, folder)

    def fields(self, run: RunSource) -> dict[str, str]:
        plain = self._aggregator.result()
        elapsed = overview.elapsed_seconds(plain, run.recorded_metrics())
        metrics = self._aggregator.result(elapsed_seconds=elapsed)
        return {
            "tiles": overview.tiles(metrics, elapsed),
            "charts": overview.charts(self._aggregator, metrics),
            "slowest": overview.slowest(self._facts),
            "figures": overview.figures(metrics),
            "stops": "".join(f"<option>{reason}</option>" for reason in overview.stops(metrics)),
        }

    def index(self) -> dict[str, object]:
        return {"columns": ROW, "rows": [facts.row() for facts in self._facts]}

    def explain(self) -> None:
        """Say in the page what is not as it should be."""
        notes = self.document.notes
        if self._broken:
            notes.insert(
                0,
                f"Episodes that break a rule of the ledger: {self._broken}. Do not train on them.",
            )
        if self._left_out:
            notes.insert(
                0,
                f"The figures are of all episodes; the list shows the first {len(self._facts)} "
                f"and leaves out {self._left_out}.",
            )
