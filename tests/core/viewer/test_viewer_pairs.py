"""Two runs on the same seeds: which episodes belong together, and what changed."""

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from fakes.branching import IMAGES, rewritten, tree
from fakes.command import run_envkit
from fakes.models import tiny_model_dir
from fakes.trajectories import Reply, build, example, quick
from fakes.viewer_page import Page
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from envkit.errors import ConfigurationError, StorageError
from envkit.trajectory import (
    REWARD_THRESHOLD,
    Segment,
    SegmentKind,
    StopReason,
    Trajectory,
    save,
)
from envkit.viewer import write_diff
from envkit.viewer.diff import compare_rows
from envkit.viewer.differences import Trace, differences
from envkit.viewer.pairs import PairChange, match, mean_difference
from envkit.viewer.rows import EpisodeRow, episode_row


def facts(number: int = 1, *, reward: float = 0.0, text: str = "a", **options: Any) -> EpisodeRow:
    metadata = {REWARD_THRESHOLD: 1.0, **options.pop("metadata", {})}
    one = build([Reply(reward=reward, text=text)], metadata=metadata, **options)
    return episode_row(one, number=number)


def flips(first: EpisodeRow, second: EpisodeRow) -> set[PairChange]:
    (pair,) = match([first], [second]).pairs
    return set(pair.flips)


def test_pairs_share_environment_and_seed() -> None:
    first = [facts(1, seed=5), facts(2, seed=6), facts(3, seed=7)]
    second = [facts(1, seed=6), facts(2, seed=5), facts(3, seed=6), facts(4, seed=7, env_id="b-v0")]
    found = match(first, second)
    assert [(p.first.number, p.second.number) for p in found.pairs] == [(1, 2), (2, 1)]
    assert [one.number for one in found.only_first] == [3]
    assert [one.number for one in found.only_second] == [3, 4]


def test_pairs_of_a_group_go_by_member_and_then_by_order() -> None:
    first = [facts(n, metadata={"member": m}) for n, m in ((1, 2), (2, 0), (3, 1))]
    second = [facts(n, metadata={"member": m}) for n, m in ((1, 0), (2, 1))]
    second.append(facts(3, metadata={}))
    found = match(first, second)
    assert [(p.first.number, p.second.number) for p in found.pairs] == [(1, 3), (2, 1), (3, 2)]


def test_pairs_without_a_seed_go_by_task() -> None:
    first = [facts(1, seed=None, task={"q": 1}), facts(2, seed=None, task={"q": 2})]
    second = [facts(1, seed=None, task={"q": 2}), facts(2, seed=None, task={"q": 3})]
    found = match(first, second)
    assert [(p.first.number, p.second.number) for p in found.pairs] == [(2, 1)]


def test_pairs_name_everything_that_changed() -> None:
    solved, failed = facts(reward=1.0), facts(reward=0.0)
    faulted = facts(stop_reason=StopReason.ENV_FAULT)
    limited = facts(stop_reason=StopReason.MAX_TURNS)
    assert flips(failed, failed) == set()
    assert flips(failed, solved) == {PairChange.NOW_SOLVED, PairChange.OTHER_REWARD}
    assert flips(solved, failed) == {PairChange.NOW_FAILED, PairChange.OTHER_REWARD}
    assert flips(facts(reward=0.75), facts(reward=0.5)) == {PairChange.OTHER_REWARD}
    undeclared = structs.replace(solved, is_solved=None)
    assert flips(undeclared, failed) == {PairChange.OTHER_REWARD}
    assert flips(failed, undeclared) == {PairChange.OTHER_REWARD}
    assert flips(solved, faulted) == {PairChange.NEW_FAULT, PairChange.OTHER_STOP}
    assert flips(faulted, failed) == {PairChange.FAULT_GONE, PairChange.OTHER_STOP}
    assert flips(failed, limited) == {PairChange.OTHER_STOP}
    assert flips(failed, facts(text="b")) == {PairChange.OTHER_REPLIES}
    assert flips(failed, facts(task={"question": "another"})) == {PairChange.OTHER_TASK}


def test_mean_difference_of_one_pair_per_seed_is_their_mean() -> None:
    rng = random.Random(0)
    values = [(rng.random(), rng.random()) for _ in range(20)]
    first = [facts(n, seed=n, reward=a) for n, (a, _) in enumerate(values)]
    second = [facts(n, seed=n, reward=b) for n, (_, b) in enumerate(values)]
    found = mean_difference(match(first, second).pairs, lambda one: one.reward)
    differences = [b - a for a, b in values]
    assert found is not None
    assert found.mean == pytest.approx(mean(differences))
    assert found.interval is not None
    width = 2 * 2.093 * stdev(differences) / math.sqrt(20)  # Student's, 19 degrees of freedom
    assert found.interval.high - found.interval.low == pytest.approx(width, rel=0.12)
    assert (found.pairs, found.seeds) == (20, 20)


def test_mean_difference_counts_a_seed_as_one_draw() -> None:
    """Four copies of each pair bring no knowledge: the interval stays what it was."""
    rewards = {seed: float(seed % 3 > 0) for seed in range(9)}
    found = [
        mean_difference(
            match(
                [facts(n, seed=seed) for seed in rewards for n in range(copies)],
                [
                    facts(n, seed=seed, reward=rewards[seed])
                    for seed in rewards
                    for n in range(copies)
                ],
            ).pairs,
            lambda one: one.reward,
        )
        for copies in (1, 4)
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].interval is not None
    assert found[1].interval == found[0].interval
    assert (found[1].pairs, found[1].seeds) == (36, 9)


def test_mean_difference_leaves_out_what_has_no_value() -> None:
    faulted = facts(1, stop_reason=StopReason.ENV_FAULT)
    assert mean_difference(match([faulted], [facts(1)]).pairs, lambda one: one.reward) is None
    one = mean_difference(match([facts(1)], [facts(1, reward=1.0)]).pairs, lambda one: one.reward)
    assert one is not None
    assert (one.mean, one.interval) == (1.0, None)


@quick
@given(
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 2)), max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 2)), max_size=8),
)
def test_matching_uses_every_episode_once(
    left: list[tuple[int, int | None]], right: list[tuple[int, int | None]]
) -> None:
    first, second = (
        [facts(n, seed=seed, metadata={"member": member}) for n, (seed, member) in enumerate(side)]
        for side in (left, right)
    )
    found = match(first, second)
    assert sorted(
        [*(p.first.number for p in found.pairs), *(f.number for f in found.only_first)]
    ) == list(range(len(left)))
    assert sorted(
        [*(p.second.number for p in found.pairs), *(f.number for f in found.only_second)]
    ) == list(range(len(right)))
    assert all(pair.first.seed == pair.second.seed for pair in found.pairs)
    assert not {f.seed for f in found.only_first} & {f.seed for f in found.only_second}


def two_runs(folder: Path) -> tuple[Path, Path]:
    """A run of which the first episode fails later, the second is alike, the third has no other."""
    known: dict[str, Any] = {"metadata": {REWARD_THRESHOLD: 1.0}}
    before: list[Trajectory] = [example(n, seed=n, **known) for n in range(3)]
    failing = build([Reply(reward=0.0, text="no idea")], seed=0, episode_id="failing", **known)
    save(before, folder / "before" / "trajectories.jsonl")
    save([example(1, seed=1, **known), failing], folder / "after" / "trajectories.jsonl")
    return folder / "before", folder / "after"


def test_diff_shows_pairs_and_lists_unpaired_episodes(tmp_path: Path) -> None:
    before, after = two_runs(tmp_path)
    found = Page(write_diff(before, after, tmp_path / "diff.html"))
    assert "What changed from before to after" in found.text
    assert "Only in before: 1 episode, which has no counterpart" in found.notes
    assert found.index["diff"]["names"] == ["before", "after"]
    assert [(row["first"], row["second"]) for row in found.rows] == [(1, 2), (2, 1)]
    assert found.rows[0]["flips"][:3] == ["now failed", "other reward", "other replies"]
    assert found.rows[0]["flips"][3:] == ["turn 1: the prompt differs at token 1 and image 1"]
    assert found.rows[1]["flips"] == []
    assert found.episode(1)["id"] == "episode-0"
    assert found.episode(2, run=1)["id"] == "failing"
    assert str(tmp_path) not in (tmp_path / "diff.html").read_text()


def test_diff_holds_an_image_of_both_runs_once(tmp_path: Path) -> None:
    found = Page(write_diff([example(0)], [example(0)], tmp_path / "diff.html"))
    assert len([name for name in found.blocks if name.startswith("image-")]) == 2


def test_diff_of_other_tasks_says_so(tmp_path: Path) -> None:
    other = example(0, task={"question": "something else"})
    found = Page(write_diff([example(0)], [other], tmp_path / "diff.html"))
    assert "1 pair has the same seed and another task" in found.notes


def test_diff_of_nothing_in_common_is_refused(tmp_path: Path) -> None:
    rows = [example(0, seed=1)]
    with pytest.raises(StorageError, match="no readable episode"):
        write_diff(rows, [], tmp_path / "diff.html")
    others = [replace(row, env_id="other-v0") for row in rows]
    with pytest.raises(ConfigurationError, match=r"share none: .* plays .*plays other-v0"):
        write_diff(rows, others, tmp_path / "diff.html")
    reseeded = [replace(row, seed=2) for row in rows]
    with pytest.raises(ConfigurationError, match=r"both play .*, with different seeds"):
        write_diff(rows, reseeded, tmp_path / "diff.html")
    assert not list(tmp_path.iterdir())


def test_diff_shows_the_first_pairs_and_counts_all(tmp_path: Path) -> None:
    rows = [example(n, seed=n) for n in range(3)]
    found = Page(write_diff(rows, rows, tmp_path / "diff.html", max_episodes=2))
    assert len(found.rows) == 2
    assert "The figures count all 3 pairs; the list shows 2." in found.notes
    with pytest.raises(ConfigurationError, match="max_episodes must be at least 1, got 0"):
        write_diff(rows, rows, tmp_path / "diff.html", max_episodes=0)


def test_command_compares_two_runs(tmp_path: Path) -> None:
    before, after = two_runs(tmp_path)
    outcome = run_envkit("report", str(before), str(after))
    assert outcome.code == 0
    assert outcome.out.strip() == str(before / "diff.html")
    assert Page(before / "diff.html").index["diff"]["names"] == ["before", "after"]
    limited = run_envkit("report", str(before), "--max-episodes", "1")
    assert limited.code == 0
    assert len(Page(before / "report.html").rows) == 1
    with pytest.raises(StorageError, match="no trajectory file"):
        write_diff(before, tmp_path / "none", tmp_path / "diff.html")


def test_command_shows_tokens_as_text_by_a_model(tmp_path: Path) -> None:
    save([example(0)], tmp_path / "trajectories.jsonl")
    model = tiny_model_dir("qwen2_5_vl")
    outcome = run_envkit("report", str(tmp_path), "--model", str(model))
    assert outcome.code == 0
    words = Page(tmp_path / "report.html").unpack("vocabulary-0")["vocabulary"]
    assert set(words) == {str(i) for s in example(0).segments for i in s.train_ids}
    assert any(isinstance(text, str) and text for text in words.values())


async def test_forks_pair_by_their_place_in_the_tree() -> None:
    first, second = await tree(), await tree()
    shuffled = [second[n] for n in (2, 0, 3, 1)]
    rows = [rows_of(run) for run in (first, shuffled)]
    found = match(*rows)
    assert (found.only_first, found.only_second) == ((), ())
    assert (found.forks_first, found.forks_second) == ((), ())
    place = {row.number: row.episode_id.partition(".")[2] for row in rows[0]}
    theirs = {row.number: row.episode_id.partition(".")[2] for row in rows[1]}
    assert {place[p.first.number]: theirs[p.second.number] for p in found.pairs} == {
        name: name for name in ("", "1.1", "3.1", "1.1.3.1")
    }


async def test_forks_that_only_one_run_has_are_no_missing_episodes() -> None:
    leaves = await tree()
    diff = compare_rows(rows_of(leaves), rows_of(leaves[:1]), ["tree", "line"])
    assert diff["pairs"] == 1
    assert diff["notes"] == [
        "Forked only in tree: 3 forks, excluded from the comparison; the other run has their "
        "trunks. Line 2 (turn 2), 3 (turn 4), 4 (turn 4)."
    ]


async def test_fork_without_its_parent_pairs_with_one_at_the_same_turn() -> None:
    trunk, *forks = await tree()
    assert match(rows_of(forks[:1]), rows_of([trunk])).pairs == ()
    found = match(rows_of(forks), rows_of(forks[::-1]))
    assert [(p.first.number, p.second.number) for p in found.pairs] == [(1, 3), (2, 2), (3, 1)]


async def test_cycle_of_forks_is_shown_and_paired() -> None:
    leaves = await tree()
    rows = rows_of(leaves[1:3])
    first, second = rows[0].episode_id, rows[1].episode_id
    circle = [structs.replace(rows[0], parent=second), structs.replace(rows[1], parent=first)]
    assert [p.first.number for p in match(circle, circle).pairs] == [1, 2]


async def test_differences_name_the_first_token_and_the_fork() -> None:
    trunk, fork, *_ = await tree()
    trace = Trace.of(fork)
    changed = with_reply(fork, turn=4, token=3)
    assert differences(trace, trace) == []
    assert differences(trace, Trace.of(changed)) == ["turn 5: the reply differs at token 4"]
    early = with_reply(fork, turn=0, token=0)
    assert differences(trace, Trace.of(early)) == [
        "turn 1, before the fork: the reply differs at token 1"
    ]
    short = replace(trunk, segments=trunk.segments[:4], turns=trunk.turns[:2])
    assert differences(Trace.of(short), Trace.of(trunk)) == ["turn 3: only the second continues"]


async def test_differences_name_the_first_image_and_the_rewrite() -> None:
    kept, dropped = await rewritten(None, images=True), await rewritten(IMAGES, images=True)
    text = "history rewritten only in the second (keep last images, 1 image, 4 messages as before)"
    assert differences(Trace.of(kept), Trace.of(dropped)) == [f"turn 3: {text}"]
    at = next(n for n, one in enumerate(kept.segments) if n and one.images)
    other = replace(kept.segments[at], images=kept.segments[0].images)
    segments = (*kept.segments[:at], other, *kept.segments[at + 1 :])
    swapped = Trace.of(replace(kept, segments=segments))
    assert differences(Trace.of(kept), swapped) == ["turn 2: the observation differs at image 1"]
    later = await rewritten({"keep_last_images": {"keep": 1, "drop_at": 3}}, images=True)
    fewer = await rewritten({"keep_last_images": {"keep": 2, "drop_at": 3}}, images=True)
    assert (
        "turn 4: history rewritten as keep last images, 1 image"
        in differences(Trace.of(later), Trace.of(fewer))[-1]
    )
    assert PairChange.OTHER_HISTORY in flips(
        episode_row(kept, number=1), episode_row(dropped, number=1)
    )


async def test_comparison_of_trees_says_where_each_pair_parts(tmp_path: Path) -> None:
    leaves = await tree()
    changed = [with_reply(one, turn=0, token=1) for one in leaves]
    save(leaves, tmp_path / "a.jsonl")
    page = Page(write_diff(tmp_path / "a.jsonl", iter(changed), tmp_path / "diff.html"))
    texts = [row[3][-1] for row in page.index["diff"]["rows"]]
    assert texts[0] == "turn 1: the reply differs at token 2"
    assert texts[1:] == ["turn 1, before the fork: the reply differs at token 2"] * 3


def rows_of(run: Iterable[Trajectory]) -> list[EpisodeRow]:
    return [episode_row(one, number=number) for number, one in enumerate(run, start=1)]


def with_reply(trajectory: Trajectory, *, turn: int, token: int) -> Trajectory:
    """Return the episode with another token in one reply."""

    def changed(segment: Segment) -> Segment:
        if segment.kind is not SegmentKind.MODEL or segment.turn != turn:
            return segment
        ids = list(segment.train_ids)
        ids[token] += 1
        return replace(segment, train_ids=ids, wire_ids=ids)

    return replace(trajectory, segments=tuple(map(changed, trajectory.segments)))


def test_comparison_counts_wins_losses_and_ties() -> None:
    def rows(*rewards: float | None) -> list[EpisodeRow]:
        return [
            structs.replace(facts(n, seed=n), reward=reward) for n, reward in enumerate(rewards)
        ]

    diff = compare_rows(
        rows(0.0, 1.0, 0.5, None, math.nan, 0.25), rows(1.0, 0.5, 0.5, 1.0, 1.0, 0.5), ["a", "b"]
    )
    assert diff["scores"] == {"wins": 2, "losses": 1, "ties": 1, "unscored": 2}
