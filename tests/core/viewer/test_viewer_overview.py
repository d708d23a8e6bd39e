"""What the pages of a run say about it: causes of faults, thresholds, cut replies, checks."""

from dataclasses import replace
from typing import Any

from fakes.marked_runs import grouped_run
from fakes.trajectories import Reply, build, example, with_sanity

from envkit.errors import FaultKind
from envkit.success import IS_SUCCESS
from envkit.tokens import SanityStatus
from envkit.trajectory import REWARD_THRESHOLD, FaultPlace, FaultRecord, StopReason, Trajectory
from envkit.viewer.run import RunData, read_run
from envkit.viewer.run_text import sections
from envkit.viewer.wording import CHECKS, rule_words

CRASHED = FaultRecord(where=FaultPlace.RESET, kind=FaultKind.CRASHED, message="the browser is gone")


def faulted(count: int, fault: FaultRecord | None = None, name: str = "f") -> list[Trajectory]:
    """Return episodes without a turn; the default fault is a timeout of a step."""
    stop = StopReason.ENV_FAULT
    return [
        build([], stop_reason=stop, fault=fault, episode_id=f"{name}-{n}") for n in range(count)
    ]


def figures(rows: list[Trajectory]) -> dict[str, Any]:
    return read_run(rows).figures()


def titles(run: RunData) -> list[str]:
    return [section.title for section in sections(run)]


def test_figures_list_causes_of_faults_the_most_frequent_first() -> None:
    rows = [*faulted(1, CRASHED, "crash"), *faulted(3), *grouped_run(groups=1)]
    assert figures(rows)["causes"] == [
        ["step timeout", 3, "no answer in 5 s", 2],
        ["reset crashed", 1, "the browser is gone", 1],
    ]
    assert figures(grouped_run(groups=1))["causes"] == []


def test_figures_bound_the_number_of_causes() -> None:
    kinds = [
        FaultRecord(where=place, kind=kind, message="no")
        for place in FaultPlace
        for kind in FaultKind
    ]
    found = figures([one for n, kind in enumerate(kinds) for one in faulted(1, kind, str(n))])
    assert found["faults"] == len(kinds)
    assert len(found["causes"]) == 12


def test_text_of_a_run_of_faults_begins_with_their_causes_and_shows_no_empty_table() -> None:
    run = read_run(faulted(4))
    assert titles(run)[:2] == ["What matters", "Causes of faults"]
    assert "Solve rate by group" not in titles(run)
    names = [one["name"] for one in run.figures()["distributions"]]
    assert names == ["Seconds"]  # no turn was played and no token was sampled


def test_figures_say_what_decided_which_episodes_are_solved() -> None:
    one = build([Reply(reward=1.0)], metadata={REWARD_THRESHOLD: 0.5})
    other = build([Reply(reward=1.0)], metadata={REWARD_THRESHOLD: 1.0}, episode_id="other")
    judged = build([Reply(reward=1.0, info={IS_SUCCESS: True})], metadata={REWARD_THRESHOLD: 9.0})
    judged = replace(judged, episode_id="judged")
    words = {
        "reward ≥ 0.50": [one],
        "reward ≥ 0.50 to 1": [one, other],
        "own verdict": [judged],
        "reward ≥ 0.50 or own verdict": [one, judged],
    }
    for expected, rows in words.items():
        assert rule_words(figures(rows)["solved"]["by"]) == expected
    (headline, *_) = sections(read_run([one]))
    assert headline.rows[1] == ("Solved", "100%", "1 of 1, reward ≥ 0.50")


def test_figures_count_replies_that_were_cut_at_their_limit() -> None:
    cut = build([Reply(finish_reason="length"), Reply(), Reply(finish_reason="length")])
    run = read_run([cut, example(1)])
    assert [row.cut for row in run.rows] == [2, 0]
    assert run.figures()["cut"] == 2
    (headline, *_) = sections(run)
    assert headline.rows[-1][2].endswith("2 cut at the token limit")


def test_figures_count_observations_by_how_they_compare_with_a_full_render() -> None:
    all_drawn, half = (with_sanity(example(n), *[SanityStatus.EQUAL] * (2 - n)) for n in range(2))
    assert [entry[:2] for entry in figures([all_drawn])["renders"]] == [["equal", 2]]
    assert [entry[:2] for entry in figures([all_drawn, half])["renders"]] == [
        ["equal", 3],
        ["rest", 1],
    ]
    assert figures([example(0)])["renders"] == []
    (found,) = (one for one in sections(read_run([half])) if one.title == "Checked observations")
    assert found.rows == [
        (CHECKS["equal"], "1", ""),
        ("not checked, outside the sample that a run draws", "1", ""),
    ]
