"""MiniWoB++ without a browser: tasks, scoring, the page as the oracle reads it, its moves."""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envkit
from envkit.errors import (
    ConfigurationError,
    DatasetError,
    MissingDependencyError,
    UnknownNameError,
)
from envkit_actions import Action, ActionKind
from envkit_browser import miniwob
from envkit_browser.miniwob import moves
from envkit_browser.miniwob.page import Element, Page
from envkit_browser.miniwob.scoring import score
from envkit_browser.miniwob.site import miniwob_site, page_path
from envkit_browser.miniwob.source import check_task


def _row(tag: str, text: str = "", parent: int | None = None, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "parent": parent,
        "tag": tag,
        "attributes": {},
        "text": text,
        "box": [10, 20, 30, 40],
        "point": [25, 40],
        "text_ends": None,
        "value": None,
        "checked": False,
        "focused": False,
        "color": "",
        "background": "",
        "scrolls": False,
        "scroll": [0, 0, 0],
        "selection": None,
    }
    return {**plain, **more}


def _page(*rows: dict[str, Any], goal: str = "", **known: Any) -> Page:
    data = {"elements": list(rows), "bar": [], "selected": ""}
    return Page.from_json(data, task="some-task", goal=goal, scale=2.0, **known)


def _field(**more: Any) -> Page:
    return _page(_row("input", attributes={"id": "tt"}, **more))


def _fill(page: Page, text: str) -> list[Action]:
    return list(moves.fill(page, page.one("#tt"), text))


def test_every_page_of_the_package_is_registered_or_left_out_with_a_reason() -> None:
    origin = importlib.util.find_spec("miniwob")
    assert origin is not None
    assert origin.origin is not None
    pages = {path.stem for path in (Path(origin.origin).parent / "html/miniwob").glob("*.html")}
    assert set(miniwob.TASKS) | set(miniwob.EXCLUDED) == pages
    assert not set(miniwob.TASKS) & set(miniwob.EXCLUDED)
    assert len(miniwob.TASKS) == 125


def test_plans_are_for_registered_tasks() -> None:
    assert set(miniwob.PLANS) <= set(miniwob.TASKS)
    assert len(miniwob.PLANS) >= 100


def test_collection_makes_each_task_an_environment() -> None:
    env = envkit.make("miniwob/click-button-v0")
    assert isinstance(env, miniwob.MiniwobEnv)
    assert env.tasks is not None
    assert {env.tasks.task(index)["name"] for index in range(5)} == {"click-button"}


def test_site_serves_pages_with_the_script_first_and_nothing_else() -> None:
    served = miniwob_site().serve("https://task.invalid/" + page_path("click-test"))
    assert served.status == 200
    body = served.body.decode()
    assert body.index("envkit-page.js") < body.index("core.js")
    assert miniwob_site().serve("https://task.invalid/core/core.js").status == 200
    assert miniwob_site().serve("https://task.invalid/../__init__.py").status == 404


def test_missing_package_prints_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", found)
    miniwob_site.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[browser\]'"):
        miniwob.MiniwobEnv()


def test_source_gives_the_same_row_for_the_same_index() -> None:
    rows = [miniwob.MiniwobTasks().task(index) for index in range(200)]
    assert rows == [miniwob.MiniwobTasks().task(index) for index in range(200)]
    assert json.loads(json.dumps(rows)) == rows
    assert len({row["name"] for row in rows}) > 60
    assert {row["seed"] for row in rows}.isdisjoint(
        miniwob.MiniwobTasks(split="test").task(index)["seed"] for index in range(200)
    )


def test_source_of_a_kind_gives_only_its_tasks() -> None:
    source = miniwob.MiniwobTasks(kinds=["date"])
    assert {miniwob.TASKS[name].kind for name in source.names} == {miniwob.Kind.DATE}
    assert {source.task(index)["kind"] for index in range(20)} == {"date"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"names": ["click-buton"]}, UnknownNameError),
        ({"kinds": ["clicks"]}, UnknownNameError),
        ({"split": "dev"}, ConfigurationError),
        ({"names": ["click-button"], "kinds": ["date"]}, ConfigurationError),
    ],
)
def test_source_refuses(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        miniwob.MiniwobTasks(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"scale": 0},
        {"scale": 5},
        {"scoring": "half"},
        {"mix": "some"},
        {"task": "no-task"},
        {"action": "none"},
        {"max_turns": 0},
    ],
)
def test_environment_refuses(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        miniwob.MiniwobEnv(**arguments)


@pytest.mark.parametrize(
    "task",
    [{}, {"name": "click-test"}, {"name": "x", "seed": 1}, {"name": "click-test", "seed": True}],
)
def test_task_without_name_or_seed_is_refused(task: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match="needs the 'name'"):
        check_task(task)


def test_oracle_says_which_tasks_it_has_no_plan_for() -> None:
    with pytest.raises(ConfigurationError, match="tic-tac-toe"):
        miniwob.MiniwobEnv(task="tic-tac-toe").oracle()
    assert miniwob.MiniwobEnv().oracle() is not None


@pytest.mark.parametrize(
    ("raw", "success", "full", "own"),
    [(1.0, 1.0, 1.0, 1.0), (0.4, 1.0, 0.0, 0.4), (0.0, 0.0, 0.0, 0.0), (None, 0.0, 0.0, -1.0)],
)
def test_score_follows_the_rule(raw: float | None, success: float, full: float, own: float) -> None:
    assert score(miniwob.Scoring.SUCCESS, raw) == success
    assert score(miniwob.Scoring.FULL, raw) == full
    assert score(miniwob.Scoring.RAW, raw) == own


@pytest.mark.parametrize("name", sorted(miniwob.TASKS))
def test_solved_task_earns_the_whole_reward(name: str) -> None:
    entry = miniwob.TASKS[name]

    assert score(miniwob.Scoring.FULL, 1.0, entry.full) == 1.0
    assert score(miniwob.Scoring.FULL, math.nextafter(entry.full, 0), entry.full) == 0.0
    assert 0.85 <= entry.full <= 1.0
    assert entry.full == 1.0 or name in miniwob.PARTIAL


@given(st.none() | st.floats(-2, 2))
def test_score_stays_within_its_bounds(raw: float | None) -> None:
    assert {score(rule, raw) for rule in (miniwob.Scoring.SUCCESS, miniwob.Scoring.FULL)} <= {
        0.0,
        1.0,
    }
    assert -1 <= score(miniwob.Scoring.RAW, raw) <= 1


def test_selector_matches_names_ids_classes_and_descendants() -> None:
    page = _page(
        _row("div", attributes={"id": "area"}),
        _row("ul", parent=0, attributes={"class": "list wide"}),
        _row("li", "one", parent=1),
        _row("li", "two", parent=1),
        _row("li", "three"),
    )
    assert [found.text for found in page.all("#area li")] == ["one", "two"]
    assert [found.text for found in page.all("#area ul.list.wide li")] == ["one", "two"]
    assert page.with_text("li", "three").number == 4
    assert page.first(".list li", page.one("#area")) == page.elements[2]
    assert page.before(page.elements[3]) == page.elements[2]
    assert page.first("table") is None
    with pytest.raises(LookupError, match="must have 'table'"):
        page.one("table")


def test_press_goes_to_the_free_point_in_pixels_of_the_screenshot() -> None:
    page = _page(_row("button", point=[5.6, 7.4]))
    assert moves.press(page, page.one("button")) == Action(kind=ActionKind.CLICK, x=11, y=14)
    covered = _page(_row("button", point=None))
    with pytest.raises(LookupError, match="cannot be reached"):
        moves.press(covered, covered.one("button"))


def test_fill_only_does_the_remaining_part() -> None:
    write = Action(kind=ActionKind.TYPE, text="abc")
    select = Action(kind=ActionKind.KEY, keys=("ctrl", "a"))
    assert _fill(_field(value="abc"), "abc") == []
    assert _fill(_field(value="", focused=True), "abc") == [write]
    assert _fill(_field(value="old", focused=True, selection=[0, 1]), "abc") == [select, write]
    assert _fill(_field(value="old", focused=True, selection=[0, 3]), "abc") == [write]
    assert [step.kind for step in _fill(_field(value=""), "abc")] == ["click", "type"]


def test_reach_scrolls_the_pane_that_hides_an_element() -> None:
    page = _page(
        _row("div", box=[0, 50, 160, 150], scrolls=True),
        _row("button", parent=0, box=[10, 300, 20, 10], point=None),
    )
    (wheel,) = moves.reach(page, page.one("button"))
    assert wheel.kind is ActionKind.SCROLL
    assert wheel.dy > 0
    assert list(moves.reach(_page(_row("button")), _element(_row("button")))) == []


def _element(row: dict[str, Any]) -> Element:
    return _page(row).elements[0]
