"""What changed from one run to another, as JSON data for the front end."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.text import counted
from envkit.viewer.differences import Trace, differences
from envkit.viewer.figures import ends, is_summable
from envkit.viewer.pairs import Matching, Pair, PairChange, match, mean_difference
from envkit.viewer.rows import EpisodeRow

COLUMNS: Final = ("pair", "first", "second", "flips")
"""Names of a pair's columns; first and second are episode numbers. The flips are followed by where
the two episodes diverge."""
Traces = Callable[[Collection[int]], Mapping[int, Trace]]
"""Reads episodes of a run by number."""
MAX_PLACED: Final = 1_000
"""Maximum number of pairs for which a comparison says where they diverge."""
_OUTCOMES: Final = {True: "solved", False: "failed", None: "undefined"}
_LISTED: Final = 20


def compare_rows(
    first: Sequence[EpisodeRow],
    second: Sequence[EpisodeRow],
    names: Sequence[str],
    *,
    most: int | None = None,
    traces: Sequence[Traces] = (),
) -> dict[str, Any]:
    """Return the comparison of two runs as JSON data.

    Args:
        first: The episodes of one run.
        second: The episodes of the other run.
        names: Names of both runs.
        most: Maximum number of episodes per run whose pairs are listed; the figures count all. None
            lists all.
        traces: Read the episodes of both runs, to find where the first 1,000 pairs diverge; if
            empty, the comparison says only what changed.

    Raises:
        StorageError: An episode cannot be read again.
        ConfigurationError: The runs share no environment and seed.
    """
    matching = match(first, second)
    pairs = matching.pairs
    if not pairs:
        played = [", ".join(sorted({row.env_id for row in rows})) for rows in (first, second)]
        what = (
            f"both play {played[0]}, with different seeds"
            if played[0] == played[1]
            else f"{names[0]} plays {played[0]}, {names[1]} plays {played[1]}"
        )
        raise ConfigurationError(
            "episodes are paired by environment and seed, and these runs share none: "
            f"{what}; play both with the same --seed"
        )
    listed = [{row.number for row in rows[:most]} for rows in (first, second)]
    shown = [p for p in pairs if p.first.number in listed[0] and p.second.number in listed[1]]
    places = _places(sorted(shown, key=lambda pair: not pair.flips)[:MAX_PLACED], traces)
    counts = Counter(flip for pair in pairs for flip in pair.flips)
    outcomes = Counter((pair.first.is_solved, pair.second.is_solved) for pair in pairs)
    return {
        "names": list(names),
        "pairs": len(pairs),
        "scores": _scores(pairs),
        "means": [entry for name, value in _MEANS if (entry := _mean(pairs, name, value))],
        "flips": [[flip.value, counts[flip]] for flip in PairChange if counts[flip]],
        "alike": sum(not pair.flips for pair in pairs),
        "outcomes": {
            "kinds": list(_OUTCOMES.values()),
            "counts": [[outcomes[before, after] for after in _OUTCOMES] for before in _OUTCOMES],
        },
        "columns": COLUMNS,
        "rows": [
            [
                number,
                pair.first.number,
                pair.second.number,
                [*(flip.value for flip in pair.flips), *places.get(pair.first.number, ())],
            ]
            for number, pair in enumerate(shown, start=1)
        ],
        "notes": list(_notes(matching, names, len(shown))),
    }


def _scores(pairs: Sequence[Pair]) -> dict[str, int]:
    """Return in how many pairs the second reward is higher, lower and equal.

    A pair without two finite rewards counts as "unscored".
    """
    counts: dict[str, int] = dict.fromkeys(("wins", "losses", "ties", "unscored"), 0)
    for pair in pairs:
        before, after = pair.first.reward, pair.second.reward
        if is_summable(before) and is_summable(after):
            counts["wins" if after > before else "losses" if after < before else "ties"] += 1
        else:
            counts["unscored"] += 1
    return counts


def _places(pairs: Sequence[Pair], traces: Sequence[Traces]) -> dict[int, list[str]]:
    """Return where pairs diverge, by the number of the first episode."""
    if not traces:
        return {}
    first = traces[0]({pair.first.number for pair in pairs})
    second = traces[1]({pair.second.number for pair in pairs})
    return {
        pair.first.number: differences(first[pair.first.number], second[pair.second.number])
        for pair in pairs
        if pair.first.number in first and pair.second.number in second
    }


def _notes(matching: Matching, names: Sequence[str], shown: int) -> Iterator[str]:
    """Say what the figures count."""
    if shown < len(matching.pairs):
        yield f"The figures count all {len(matching.pairs):,} pairs; the list shows {shown:,}."
    for name, forks in zip(names, (matching.forks_first, matching.forks_second), strict=True):
        if forks:
            places = _listed([f"{row.number} (turn {row.shared + 1})" for row in forks])
            yield (
                f"Forked only in {name}: {counted(len(forks), 'fork')}, excluded from the "
                f"comparison; the other run has their trunks. Line {places}."
            )
    for name, alone in zip(names, (matching.only_first, matching.only_second), strict=True):
        if alone:
            some = _listed([str(row.number) for row in alone])
            fate = "has no counterpart and is" if len(alone) == 1 else "have no counterpart and are"
            yield (
                f"Only in {name}: {counted(len(alone), 'episode')}, which {fate} excluded from the "
                f"comparison. Line {some}."
            )
    changed = sum(PairChange.OTHER_TASK in pair.flips for pair in matching.pairs)
    if changed:
        verb = "has" if changed == 1 else "have"
        yield (
            f"{counted(changed, 'pair')} {verb} the same seed and another task: the environment, "
            "its arguments or its data differ between the runs."
        )


def _listed(places: Sequence[str]) -> str:
    more = f" and {len(places) - _LISTED} more" if len(places) > _LISTED else ""
    return ", ".join(places[:_LISTED]) + more


_MEANS: Final[tuple[tuple[str, Callable[[EpisodeRow], float | None]], ...]] = (
    ("mean reward", lambda row: row.reward),
    ("share solved", lambda row: row.is_solved),
    ("turns per episode", lambda row: row.turns),
    ("sampled tokens per episode", lambda row: row.sampled),
)
"""Values that are compared by their means: name, and value of an episode."""


def _mean(
    pairs: Sequence[Pair], name: str, value: Callable[[EpisodeRow], float | None]
) -> dict[str, Any] | None:
    found = mean_difference(pairs, value)
    if found is None:
        return None
    return {
        "name": name,
        "mean": found.mean,
        **ends(found.interval),
        "pairs": found.pairs,
        "seeds": found.seeds,
    }
