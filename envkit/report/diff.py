"""The comparison of two runs on the same seeds, as one HTML file."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.report.charts import Bar, bar_chart
from envkit.report.document import Decode, Document
from envkit.report.episodes import Episode
from envkit.report.facts import EpisodeFacts
from envkit.report.markup import safe_html
from envkit.report.page import MAX_EPISODES, check_max_episodes, check_not_empty
from envkit.report.pairs import (
    Flip,
    Matching,
    MeanDifference,
    Pair,
    is_solved,
    match,
    mean_difference,
)
from envkit.report.source import RunSource, Source, draw_line
from envkit.trajectory.plain import plain_float

COLUMNS: Final = (
    "pair",
    "first",
    "second",
    "seed",
    "task",
    "reward_first",
    "reward_second",
    "stop_first",
    "stop_second",
    "kind_first",
    "kind_second",
    "turns_first",
    "turns_second",
    "tokens_first",
    "tokens_second",
    "flips",
    "search",
)
"""Names of the list's columns."""
_COLOURS: Final = {
    Flip.NOW_SOLVED: "good",
    Flip.FAULT_GONE: "good",
    Flip.NOW_FAILED: "bad",
    Flip.NEW_FAULT: "bad",
    Flip.OTHER_TASK: "warn",
}
_LISTED: Final = 20


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

    Episodes are matched by environment and seed; see `envkit.report.pairs`. Differences are those
    of the second run to the first.

    Args:
        first: A trajectory file, a run directory, or trajectories.
        second: The same, of the run to compare it with.
        out_html: The file to write.
        decode: Turns token ids into text, to show tokens as text; None shows ids.
        title: Of the page; None names both runs.
        max_episodes: So many pairs are in the file; the figures are of all.

    Returns:
        The path of the page.

    Raises:
        StorageError: A run cannot be read or has no readable episode, or the page cannot be
            written.
        ConfigurationError: `max_episodes` below 1, or the runs share no environment and seed.
    """
    check_max_episodes(max_episodes)
    document = Document("diff")
    sides = [_Side(RunSource(given)) for given in (first, second)]
    for side in sides:
        side.read(document.notes, with_tokens=decode is not None)
        check_not_empty(side.run, document.notes, is_empty=not side.episodes)
    matching = match(sides[0].facts, sides[1].facts)
    if not matching.pairs:
        played = [", ".join(sorted({facts.env_id for facts in side.facts})) for side in sides]
        raise ConfigurationError(
            "two runs are compared by environment and seed, and these share none: "
            f"{sides[0].run.origin} plays {played[0]}, {sides[1].run.origin} plays {played[1]}"
        )
    shown = matching.pairs[:max_episodes]
    document.notes[:0] = _explanations(matching, sides, len(shown))
    for pair in shown:
        sides[0].put(document, f"a{pair.first.number}", pair.first)
        sides[1].put(document, f"b{pair.second.number}", pair.second)
    names = [side.run.name for side in sides]
    if names[0] == names[1]:
        names = [side.run.origin for side in sides]
    counts = Counter(flip for pair in matching.pairs for flip in pair.flips)
    listed = {flip for pair in shown for flip in pair.flips}
    fields = {
        "title": safe_html(title or f"What changed from {names[0]} to {names[1]}"),
        "subtitle": safe_html(f"A: {sides[0].run.origin} · B: {sides[1].run.origin}"),
        "tiles": _tiles(matching, counts),
        "charts": _charts(matching, counts),
        "outcomes": _outcomes(matching),
        "flips": "".join(f"<option>{flip}</option>" for flip in Flip if flip in listed),
    }
    rows = [_row(pair, number) for number, pair in enumerate(shown, start=1)]
    index = {"columns": COLUMNS, "rows": rows, "names": names}
    return document.write(out_html, fields, index, decode)


@dataclass(slots=True)
class _Side:
    """One of the two runs."""

    run: RunSource
    episodes: dict[int, Episode] = field(default_factory=dict[int, Episode])

    @property
    def facts(self) -> list[EpisodeFacts]:
        return [episode.facts for episode in self.episodes.values()]

    def read(self, notes: list[str], *, with_tokens: bool) -> None:
        for stored in self.run.lines():
            drawn = draw_line(stored, with_tokens=with_tokens)
            if isinstance(drawn, str):
                notes.append(f"{self.run.origin}: {drawn}")
            else:
                self.episodes[drawn.facts.number] = drawn

    def put(self, document: Document, name: str, facts: EpisodeFacts) -> None:
        document.add_episode(name, self.episodes[facts.number], self.run.image_folder())


def _explanations(matching: Matching, sides: Sequence[_Side], shown_pairs: int) -> Iterator[str]:
    """Say what the figures are of."""
    if shown_pairs < len(matching.pairs):
        yield (
            f"The figures are of all {len(matching.pairs)} pairs; the list shows the first "
            f"{shown_pairs}."
        )
    both = zip(sides, (matching.only_first, matching.only_second), strict=True)
    for letter, (side, alone) in zip("AB", both, strict=True):
        if alone:
            shown = ", ".join(str(facts.number) for facts in alone[:_LISTED])
            more = f" and {len(alone) - _LISTED} more" if len(alone) > _LISTED else ""
            yield (
                f"Only in {letter} ({side.run.origin}): {len(alone)} episodes, which have no "
                f"counterpart and are excluded here. Episode {shown}{more}."
            )
    changed = sum(Flip.OTHER_TASK in pair.flips for pair in matching.pairs)
    if changed:
        yield (
            f"{changed} pairs have the same seed and another task: the environment, its arguments "
            "or its data differ between the runs."
        )


def _tiles(matching: Matching, counts: Counter[Flip]) -> str:
    entries = [("pairs", f"{len(matching.pairs):,}", "")]
    for name, shape, value in _MEANS:
        found = mean_difference(matching.pairs, value)
        if found is not None:
            entries.append((name, *_with_interval(found, shape)))
    for flip in (Flip.NOW_SOLVED, Flip.NOW_FAILED, Flip.NEW_FAULT, Flip.FAULT_GONE):
        if counts[flip] or flip in (Flip.NOW_SOLVED, Flip.NOW_FAILED):
            entries.append((flip.value, f"{counts[flip]:,}", ""))
    if unmatched := len(matching.only_first) + len(matching.only_second):
        entries.append(("without a counterpart", f"{unmatched:,}", ""))
    return "".join(
        f'<div class="tile"><b>{value}</b><span>{name}</span>'
        f"{f'<small>{certainty}</small>' if certainty else ''}</div>"
        for name, value, certainty in entries
    )


def _solved(facts: EpisodeFacts) -> float | None:
    return None if facts.reward is None else float(is_solved(facts))


_MEANS: Final[tuple[tuple[str, str, Callable[[EpisodeFacts], float | None]], ...]] = (
    ("mean reward", ".3f", lambda facts: facts.reward),
    ("share solved", ".3f", _solved),
    ("turns an episode", ".2f", lambda facts: facts.turns),
    ("sampled tokens an episode", ".2f", lambda facts: facts.sampled),
)
"""What is compared by its mean: name, format, value of an episode."""


def _with_interval(found: MeanDifference, shape: str) -> tuple[str, str]:
    seeds = f"{found.pairs:,} pairs, {found.seeds:,} seeds"
    if found.interval is None:
        return _signed(found.mean, shape), seeds
    low, high = (_signed(end, shape) for end in (found.interval.low, found.interval.high))
    return _signed(found.mean, shape), f"{low} to {high} (95%), {seeds}"


def _signed(value: float, shape: str) -> str:
    return f"{value:+{shape}}".replace("-", "−")  # noqa: RUF001  # a minus sign is meant


def _charts(matching: Matching, counts: Counter[Flip]) -> str:
    if not matching.pairs:
        return ""
    whole = len(matching.pairs)
    bars = [
        Bar(flip.value, n, f"{n:,} ({100 * n / whole:.0f}%)", _COLOURS.get(flip, ""))
        for flip in Flip
        if (n := counts[flip])
    ]
    alike = sum(not pair.flips for pair in matching.pairs)
    if alike:
        bars.append(Bar("nothing", alike, f"{alike:,} ({100 * alike / whole:.0f}%)"))
    return bar_chart("What changed in a pair (a pair may count in several)", bars)


def _outcomes(matching: Matching) -> str:
    """Return the table of outcomes: rows by the first run, columns by the second."""
    kinds = ("solved", "failed", "no reward")
    counts = Counter((_outcome(pair.first), _outcome(pair.second)) for pair in matching.pairs)
    head = "".join(f'<th class="n" scope="col">{kind} in B</th>' for kind in kinds)
    rows = "".join(
        f'<tr><th scope="row">{before} in A</th>'
        + "".join(
            f'<td class="n {"same" if before == after else ""}">{counts[before, after]:,}</td>'
            for after in kinds
        )
        + "</tr>"
        for before in kinds
    )
    return f"<thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody>"


def _outcome(facts: EpisodeFacts) -> str:
    if facts.reward is None:
        return "no reward"
    return "solved" if is_solved(facts) else "failed"


def _row(pair: Pair, number: int) -> list[Any]:  # JSON data
    first, second = pair.first, pair.second
    said = (first.episode_id, second.episode_id, first.group_id, first.note, second.note)
    return [
        number,
        first.number,
        second.number,
        "" if first.seed is None else str(first.seed),
        first.excerpt,
        *(None if one.reward is None else plain_float(one.reward) for one in (first, second)),
        *(one.stop_reason.value for one in (first, second)),
        *(one.kind for one in (first, second)),
        *(one.turns for one in (first, second)),
        *(one.tokens for one in (first, second)),
        [flip.value for flip in pair.flips],
        " ".join(text for text in said if text),
    ]
