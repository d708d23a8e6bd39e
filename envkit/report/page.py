"""The report: one HTML file that needs no network, no server and no other file.

Content of a rollout is foreign: it is escaped in the static part, and reaches the script only as
JSON. The page's policy lets only this page's own script and style run and loads no address at all.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from envkit.errors import ConfigurationError, ImageError, StorageError
from envkit.images import Image
from envkit.metrics.aggregate import Aggregator
from envkit.metrics.table import summary_rows
from envkit.report.charts import Bar, bar_chart, histogram_chart
from envkit.report.episodes import Episode, draw_episode, safe_html, safe_json
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.files import replace_file
from envkit.trajectory.stop import StopReason
from envkit.trajectory.storage import read_lines, trajectory_file
from envkit.trajectory.trajectory import Trajectory

Decode = Callable[[Sequence[int]], str]

IMAGE_BUDGET_BYTES = 96 * 1024 * 1024
"""Most picture data in one report; what is beyond it is linked to `images/` beside the file."""


def write_report(
    source: str | os.PathLike[str] | Iterable[Trajectory],
    out_html: str | os.PathLike[str],
    *,
    decode: Decode | None = None,
    title: str | None = None,
    max_episodes: int = 1000,
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
        StorageError: The source cannot be read or the report cannot be written.
        ConfigurationError: `max_episodes` below 1.
    """
    if max_episodes < 1:
        raise ConfigurationError(f"max_episodes must be at least 1, got {max_episodes}")
    report = _Report(max_episodes)
    if isinstance(source, (str, os.PathLike)):
        report.read(source)
        origin = "/".join(trajectory_file(source).resolve().parts[-2:])
    else:
        origin = "trajectories in memory"
        for number, trajectory in enumerate(source, start=1):
            report.add(trajectory, None, number)
    target = Path(out_html)
    pieces = report.pieces(title or f"Rollout report: {_name(origin)}", origin, decode)
    replace_file(target, (piece.encode("utf-8", "replace") for piece in pieces))
    return target


class _Report:
    def __init__(self, max_episodes: int) -> None:
        self._max_episodes = max_episodes
        self._aggregator = Aggregator()
        self._episodes: list[Episode] = []
        self._images: dict[str, Image] = {}
        self._token_ids: set[int] = set()
        self._environments: dict[str, None] = {}
        self._left_out = 0
        self._notes: list[str] = []

    def read(self, path: str | os.PathLike[str]) -> None:
        for stored in read_lines(path):
            if stored.trajectory is not None:
                self.add(stored.trajectory, stored.certificate, stored.line)
            else:
                self._notes.append(f"Left out: {stored.error}")

    def add(self, trajectory: Trajectory, recorded: Certificate | None, number: int) -> None:
        self._aggregator.add(trajectory)
        self._environments.setdefault(trajectory.env_id)
        if len(self._episodes) >= self._max_episodes:
            self._left_out += 1
            return
        index = len(self._episodes)
        episode = draw_episode(trajectory, recorded, index=index, number=number)
        self._episodes.append(episode)
        self._token_ids |= episode.token_ids
        self._images.update({image.sha256: image for image in episode.images})

    def pieces(self, title: str, origin: str, decode: Decode | None) -> Iterator[str]:
        style, script = _asset("style.css"), _asset("app.js")
        head, tail = _asset("page.html").split("<!-- data -->")
        images = list(self._image_blocks())  # first: a picture left out is a note in the head
        policy = (
            f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; "
            f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
        )
        metrics = self._aggregator.result()
        yield Template(head).substitute(
            policy=policy,
            style=style,
            title=safe_html(title),
            subtitle=safe_html(f"{', '.join(self._environments) or 'no episode'} · {origin}"),
            notes="".join(f'<p class="note">{safe_html(note)}</p>' for note in self._all_notes()),
            tiles=_tiles(metrics),
            charts=self._charts(metrics),
            figures=_figures(metrics),
            stops="".join(f"<option>{reason}</option>" for reason in _stops(metrics)),
            rows="".join(episode.row for episode in self._episodes),
        )
        vocabulary = None if decode is None else {i: decode([i]) for i in sorted(self._token_ids)}
        yield _block("vocabulary", safe_json(vocabulary))
        for index, episode in enumerate(self._episodes):
            yield _block(f"data-{index}", episode.data)
        yield from images
        yield Template(tail).substitute(script=script)

    def _all_notes(self) -> Iterator[str]:
        yield from self._notes
        if self._left_out:
            yield (
                f"The figures are of all episodes; the list shows the first {len(self._episodes)} "
                f"and leaves out {self._left_out}."
            )
        broken = sum(episode.is_broken for episode in self._episodes)
        if broken:
            yield f"Episodes that break a rule of the ledger: {broken}. Do not train on them."

    def _image_blocks(self) -> Iterator[str]:
        budget, skipped = IMAGE_BUDGET_BYTES, 0
        for sha256, image in self._images.items():
            try:
                uri = image.data_uri()
            except (ImageError, StorageError) as error:
                self._notes.append(str(error))
                continue
            budget -= len(uri)
            if budget < 0:
                skipped += 1
                continue
            yield f'<script type="text/plain" id="image-{sha256}">{uri}</script>\n'
        if skipped:
            self._notes.append(
                f"{skipped} pictures are not in this file because it would grow too large; they "
                "are linked to the folder images/ beside it."
            )

    def _charts(self, metrics: dict[str, float]) -> str:
        if not metrics["episodes"]:
            return ""
        stops = [
            Bar(reason.value, metrics[f"stop/{reason}"], _share(metrics, reason), _colour(reason))
            for reason in sorted(_stops(metrics), key=lambda one: -metrics[f"stop/{one}"])
        ]
        charts = [bar_chart("Ended by", stops)]
        histograms = self._aggregator.histograms()
        for name, label in (
            ("reward", "Reward"),
            ("turns", "Turns of an episode"),
            ("tokens/response", "Sampled tokens of an episode"),
        ):
            if name in histograms:
                charts.append(histogram_chart(label, histograms[name]))
        return "".join(charts)


def _stops(metrics: dict[str, float]) -> list[StopReason]:
    return [reason for reason in StopReason if f"stop/{reason}" in metrics]


def _share(metrics: dict[str, float], reason: StopReason) -> str:
    return f"{metrics[f'stop/{reason}']:,.0f} ({100 * metrics[f'stop/{reason}/share']:.0f}%)"


def _colour(reason: StopReason) -> str:
    if reason.is_fault:
        return "bad"
    return "good" if reason is StopReason.TERMINATED else "warn"


def _tiles(metrics: dict[str, float]) -> str:
    entries = [("episodes", f"{metrics['episodes']:,.0f}")]
    if "reward/mean" in metrics:
        entries += [
            ("mean reward", f"{metrics['reward/mean']:.3f}"),
            ("reward above 0", f"{100 * metrics['success/rate']:.0f}%"),
        ]
    if "turns/mean" in metrics:
        entries += [
            ("turns an episode", f"{metrics['turns/mean']:.2f}"),
            ("trained tokens", f"{metrics['tokens/trained']:,.0f}"),
            ("images", f"{metrics['images/total']:,.0f}"),
        ]
    entries.append(("faulted", f"{metrics['episodes/faulted']:,.0f}"))
    return "".join(
        f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in entries
    )


def _figures(metrics: dict[str, float]) -> str:
    said = [
        f"<tr><td>{name}</td><td>{safe_html(text)}</td></tr>"
        for name, text in summary_rows(metrics)
    ]
    every = [f"<tr><td>{safe_html(k)}</td><td>{v:.6g}</td></tr>" for k, v in metrics.items()]
    return "".join(said + every)


def _name(origin: str) -> str:
    path = Path(origin)
    return path.parent.name if path.name == "trajectories.jsonl" else path.name


def _asset(name: str) -> str:
    return resources.files("envkit.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _block(name: str, text: str) -> str:
    return f'<script type="application/json" id="{name}">{text}</script>\n'
