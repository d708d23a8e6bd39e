"""Paired comparison of two runs on the same tasks, with significance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from envkit.errors import ConfigurationError, StorageError
from envkit.metrics.intervals import exact_p_value
from envkit.rollout.run_settings import RUN_FILE, command_settings
from envkit.trajectory import Trajectory, read_trajectories, success_of
from envkit.trajectory.identity import SeenEpisodes, identity
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer.pairs import MeanDifference, Pair, match, mean_difference
from envkit.viewer.rows import EpisodeRow, episode_row
from envkit_eval.samples import by_number, tags_of

_SHOWN: Final = 60
"""Maximum characters shown of a differing value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEpisode:
    """One episode of a side."""

    facts: EpisodeRow
    run: str
    """The folder of its run, for messages."""
    task: Mapping[str, Any]
    tags: Mapping[str, str]

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        *,
        number: int,
        run: str,
        by: Sequence[str] = (),
        threshold: float | None = None,
    ) -> "PairedEpisode":
        """Return the episode of a trajectory.

        Args:
            trajectory: Any trajectory, including faulted ones.
            number: Its line in the file, from 1.
            run: The folder of its run.
            by: Tags to keep.
            threshold: Rewards from this on count as solved; None uses what the run recorded.
        """
        facts = episode_row(trajectory, number=number)
        if threshold is not None:
            solved = success_of(trajectory, threshold=threshold)
            facts = structs.replace(facts, is_solved=solved)
        tags = tags_of(trajectory, by)
        return cls(facts=facts, run=run, task=dict(trajectory.task), tags=tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: a run, or all runs of an evaluation."""

    name: str
    episodes: Sequence[PairedEpisode]
    env_kwargs: Mapping[str, Mapping[str, Any]]
    """Arguments by environment, if the run recorded them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedOutcome:
    """A pair of episodes of which only one solved the task."""

    env_id: str
    seed: int | None
    excerpt: str
    """The start of the task's prompt."""
    now_solved: bool
    """False if only the first side solved the task."""
    first: str
    """The first side's episode: its run and line number."""
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The change in an environment, or in one of its families, levels or roles.

    Differences are second minus first, over pairs in which neither episode faulted. Intervals
    resample tasks.
    """

    env_id: str
    tag: str | None
    value: str | None
    unpaired: int
    """Pairs left out because one episode has no reward, and episodes without a counterpart."""
    success: MeanDifference | None
    reward: MeanDifference | None
    turns: MeanDifference | None
    reply_tokens: MeanDifference | None
    better: int
    """Tasks that the second side solved more often, of those with a defined success."""
    worse: int
    tied: int
    """Tasks that both sides solved equally often."""
    p_value: float
    """P-value of McNemar's exact test if each side played every task once. With several samples, of
    the sign test on tasks, which is the same test on their means."""
    is_mcnemar: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing two sides."""

    differences: tuple[Difference, ...]
    changed_outcomes: tuple[ChangedOutcome, ...]


def read_side(path: Path, *, by: Sequence[str], threshold: float | None = None) -> Side:
    """Load the episodes of a run directory, a trajectory file or an evaluation.

    Args:
        path: The directory or file.
        by: Tags to keep.
        threshold: Rewards from this on count as solved; None uses what the runs recorded.

    Raises:
        StorageError: It contains no run, or a trajectory cannot be read.
    """
    runs = [path]
    if path.is_dir() and not (path / FILE_NAME).is_file():
        runs = sorted(file.parent for file in path.glob(f"*/{FILE_NAME}"))
    if not runs:
        raise StorageError(
            f"{path} contains no run: --paired takes two runs or evaluations, each a folder "
            "written by `envkit eval` or `envkit rollout`"
        )
    episodes: list[PairedEpisode] = []
    seen = SeenEpisodes()
    arguments: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        recorded = _env_kwargs(run)
        for number, one in enumerate(read_trajectories(run), start=1):
            if not seen.add(identity(one)):
                continue
            episodes.append(
                PairedEpisode.of(one, number=number, run=run.name, by=by, threshold=threshold)
            )
            if recorded is not None:
                arguments[one.env_id] = recorded
    return Side(name=str(path), episodes=episodes, env_kwargs=arguments)


def _env_kwargs(run: Path) -> Mapping[str, Any] | None:
    """Return the environment's arguments; None for a run without them or of another version.

    The tasks themselves are always compared.
    """
    if not (run / RUN_FILE).is_file():
        return None
    try:
        return command_settings(run)["config"]["env_kwargs"]
    except ConfigurationError:
        return None


def check_same_tasks(first: Side, second: Side) -> None:
    """Reject two sides that did not play the same tasks.

    Raises:
        ConfigurationError: The sides differ. The message names the first difference: environments,
            their arguments, seeds or task contents.
    """
    ids = [sorted({one.facts.env_id for one in side.episodes}) for side in (first, second)]
    if ids[0] != ids[1]:
        _refuse(first, second, f"the environments are {ids[0]} and {ids[1]}")
    for env_id in ids[0]:
        left, right = first.env_kwargs.get(env_id), second.env_kwargs.get(env_id)
        if left is not None and right is not None and left != right:
            name = _first_difference(left, right)
            _refuse(
                first,
                second,
                f"{name} of {env_id} is {_shown(left, name)} and {_shown(right, name)}",
            )
        _check_tasks_of(env_id, first, second)


def _check_tasks_of(env_id: str, first: Side, second: Side) -> None:
    left, right = _by_task(first, env_id), _by_task(second, env_id)
    for key in (*left, *right):
        if key not in left or key not in right:
            alone = first if key in left else second
            _refuse(
                first,
                second,
                f"seed {key} of {env_id} is only in {alone.name}, of {len(left)} and {len(right)} "
                "tasks; give both the same --seed and -n, and finish incomplete runs with "
                "--resume",
            )
        one, other = left[key].task, right[key].task
        if one and other and left[key].facts.task_hash != right[key].facts.task_hash:
            name = _first_difference(one, other)
            _refuse(
                first,
                second,
                f"the task of seed {key} of {env_id} has {name} {_shown(one, name)} and "
                f"{_shown(other, name)}; the environment or data changed in between",
            )


def _by_task(side: Side, env_id: str) -> dict[int | str, PairedEpisode]:
    """Return one episode per seed, or per task if no seed was recorded.

    Siblings take precedence over an episode that faulted before it had a task.
    """
    found: dict[int | str, PairedEpisode] = {}
    for one in side.episodes:
        if one.facts.env_id == env_id:
            key = _task_key(one.facts)
            if key not in found or not found[key].task:
                found[key] = one
    return found


def _task_key(facts: EpisodeRow) -> int | str:
    return facts.task_hash if facts.seed is None else facts.seed


def _first_difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    missing = object()
    names = dict.fromkeys((*left, *right))
    return next((n for n in names if left.get(n, missing) != right.get(n, missing)), "")


def _shown(values: Mapping[str, Any], name: str) -> str:
    return f"{values[name]!r:.{_SHOWN}}" if name in values else "not set"


def _refuse(first: Side, second: Side, what: str) -> None:
    raise ConfigurationError(
        f"{first.name} and {second.name} must play the same tasks to be compared: {what}"
    )


def compare(first: Side, second: Side, *, by: Sequence[str]) -> Comparison:
    """Compare the second side with the first.

    Args:
        first: The baseline.
        second: The side compared with it.
        by: Tags in output order. A tag with a single value is omitted.

    Raises:
        ConfigurationError: The sides did not play the same tasks.
    """
    check_same_tasks(first, second)
    known = {one.facts.episode_id: one for one in (*first.episodes, *second.episodes)}
    differences: list[Difference] = []
    changed_outcomes: list[ChangedOutcome] = []
    for env_id in dict.fromkeys(one.facts.env_id for one in first.episodes):
        sides = [
            [one.facts for one in side.episodes if one.facts.env_id == env_id]
            for side in (first, second)
        ]
        found = match(*sides)
        alone = len(found.only_first) + len(found.only_second)
        differences.append(_difference(env_id, None, None, found.pairs, alone))
        for tag in ("role", *by):
            groups = _grouped(found.pairs, tag, known)
            if len(groups) > 1:
                differences += [
                    _difference(env_id, tag, value, groups[value], 0)
                    for value in sorted(groups, key=by_number)
                ]
        changed_outcomes += _flips(found.pairs, known)
    return Comparison(differences=tuple(differences), changed_outcomes=tuple(changed_outcomes))


def _grouped(
    pairs: Iterable[Pair], tag: str, known: Mapping[str, PairedEpisode]
) -> dict[str, list[Pair]]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        tags = known[pair.first.episode_id].tags
        value = pair.first.role if tag == "role" else tags.get(tag)
        if value is not None:
            groups.setdefault(value, []).append(pair)
    return groups


def _difference(
    env_id: str,
    tag: str | None,
    value: str | None,
    pairs: Sequence[Pair],
    alone: int,
) -> Difference:
    whole = [pair for pair in pairs if None not in (pair.first.reward, pair.second.reward)]
    changes: dict[int | str, list[int]] = {}
    judged = [p for p in whole if None not in (p.first.is_solved, p.second.is_solved)]
    for pair in judged:
        change = bool(pair.second.is_solved) - bool(pair.first.is_solved)
        changes.setdefault(_task_key(pair.first), []).append(change)
    better = sum(sum(values) > 0 for values in changes.values())
    worse = sum(sum(values) < 0 for values in changes.values())
    return Difference(
        env_id=env_id,
        tag=tag,
        value=value,
        unpaired=alone + len(pairs) - len(whole),
        success=mean_difference(judged, lambda facts: float(facts.is_solved or 0)),
        reward=mean_difference(whole, lambda facts: facts.reward),
        turns=mean_difference(whole, lambda facts: facts.turns),
        reply_tokens=mean_difference(whole, lambda facts: facts.sampled),
        better=better,
        worse=worse,
        tied=len(changes) - better - worse,
        p_value=exact_p_value(better, worse),
        is_mcnemar=len(changes) == len(judged),
    )


def _flips(pairs: Iterable[Pair], known: Mapping[str, PairedEpisode]) -> list[ChangedOutcome]:
    found: list[ChangedOutcome] = []
    for pair in pairs:
        before, after = pair.first.is_solved, pair.second.is_solved
        if before is None or after is None or before == after:
            continue
        places = [
            f"{known[one.episode_id].run} episode {one.number}" for one in (pair.first, pair.second)
        ]
        found.append(
            ChangedOutcome(
                env_id=pair.first.env_id,
                seed=pair.first.seed,
                excerpt=pair.first.excerpt,
                now_solved=after,
                first=places[0],
                second=places[1],
            )
        )
    return found
