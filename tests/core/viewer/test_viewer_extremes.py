"""Numbers, texts and names at the edge of what a page can show."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.trajectories import Reply, build
from fakes.viewer_page import Page

from envkit.messages import message
from envkit.trajectory import REWARD_THRESHOLD, Trajectory, save
from envkit.trajectory.storage import FILE_NAME
from envkit.trajectory.trajectory import AGENT, ROLE, STALE_TOKENS, TAIL, TIMES_PARKED
from envkit.viewer import write_report
from envkit.viewer.episodes import episode
from envkit.viewer.markup import safe_json, wire_json
from envkit.viewer.run import RunData, read_run
from envkit.viewer.run_text import notes, sections
from envkit.viewer.wording import number


def rewarded(number: int, reward: float) -> Trajectory:
    """Return an episode whose reward and reward term have one value."""
    one = build([Reply(reward=reward, info={"reward_terms": {"x": reward}})], seed=number)
    return replace(one, episode_id=f"e{number}")


def run_of(*rewards: float) -> RunData:
    return read_run([rewarded(n, reward) for n, reward in enumerate(rewards)])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1e308, "1.00e+308"),
        (-1.5e15, "\N{MINUS SIGN}1.50e+15"),
        (999_999_999_999_999, "999,999,999,999,999"),
        (10**400, "\N{EN DASH}"),
    ],
)
def test_number_of_many_digits_has_an_exponent(value: float, shown: str) -> None:
    assert number(value) == shown


def test_page_gets_no_infinity_and_nothing_that_ends_its_data() -> None:
    data = {"a\ud800": [float("inf"), "</script>\u2028", "\N{GRINNING FACE}"]}
    whole = {"a\ud800": [None, "</script>\u2028", "\N{GRINNING FACE}"]}
    assert json.loads(wire_json(data)) == json.loads(safe_json(data)) == whole
    assert not {"<", "\u2028"} & set(safe_json({"b": "</script>\u2028"}))


def test_report_of_a_folder_whose_name_is_not_text_has_an_address(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"run\xff")
    save([build([Reply()])], folder / FILE_NAME)
    page = Page(write_report(folder, tmp_path / "report.html"))
    assert page.index["runs"][0]["name"] == "run?"


def test_report_of_sums_beyond_a_float_is_written(tmp_path: Path) -> None:
    rows = [rewarded(n, 1e308) for n in range(2)]
    slow = [replace(one, duration_seconds=1.7e308) for one in rows]
    page = Page(write_report(slow, tmp_path / "report.html"))
    run = page.index["runs"][0]
    assert run["figures"]["terms"] == [["x", None, 2]]
    assert run["notes"] == ["The figures leave out 2 rewards, not finite or too large to average."]


def test_run_says_which_rewards_its_figures_leave_out() -> None:
    run = run_of(1e308, float("nan"), 1.0)
    assert notes(run)[-1] == "The figures leave out 2 rewards, not finite or too large to average."
    assert notes(run_of(0.0, 1.0)) == []
    assert sections(run_of(1e308))[0].rows[0] == (
        "Reward",
        "\N{EN DASH}",
        "no reward can be averaged",
    )


def test_title_of_a_long_task_is_short() -> None:
    one = build([Reply()])
    asked = message("user", "Task: " + "please " * 100_000)
    data = episode(replace(one, messages=(asked, *one.messages[1:])), None, number=1).data
    assert data["title"].startswith("please please")
    assert len(data["title"]) <= 600
    assert data["sequences"][0]["turns"][0]["heard"][0]["text"] == asked["content"]


@pytest.mark.parametrize("value", [None, True, "x", [1], {"a": 1}, 1.5])
def test_run_with_metadata_of_any_type_has_figures(value: object) -> None:
    names = (STALE_TOKENS, TIMES_PARKED, TAIL, AGENT, ROLE, REWARD_THRESHOLD)
    rows = [
        build([Reply(reward=1.0)], metadata={name: value}, seed=n, episode_id=name)
        for n, name in enumerate(names)
    ]
    figures = read_run(rows).figures()
    assert figures["episodes"] == len(names)
    assert figures["reward"]["mean"] == 1.0
