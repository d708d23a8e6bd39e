import itertools
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.containers import opened
from fakes.desktop_files import near_misses, without_formulas
from fakes.matrix import share
from PIL import Image

from envkit_actions import Action, ActionKind
from envkit_linux_desktop.tasks import FAMILIES, moves, oracle, reader, reading
from envkit_linux_desktop.tasks.checks import FilesHome, Gone, Listing, Text
from envkit_linux_desktop.tasks.scenario import LEVELS, Family, Scenario
from envkit_linux_desktop.tasks.sheets import Cell, Sheet, Workbook, xlsx
from envkit_sandbox.home import Home as SandboxHome

EACH_FAMILY = pytest.mark.parametrize(
    "family", [pytest.param(f, id=n) for n, f in FAMILIES.items()]
)
SEEDS = range(2)


class NoWindows:
    """A desktop whose windows are all gone."""

    def titles(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def shot(self) -> Image.Image:
        """Return a black screen."""
        return Image.new("RGB", (8, 8))


class Page(NoWindows):
    """A browser before an editor: its title changes late, and it closes later still."""

    def __init__(self) -> None:
        self._states = ["Untitled", "Untitled", "List", "List", ""]

    def titles(self) -> tuple[str, ...]:
        """Return the titles, each time those of a later moment."""
        page = self._states.pop(0) if len(self._states) > 1 else ""
        return ("a.txt - Mousepad", f"{page} - Chromium") if page else ("a.txt - Mousepad",)


@pytest.fixture(autouse=True)
def read_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare thousands of processes: these documents are our own."""

    def read(kind: str, data: bytes) -> Any:
        return reader.read(kind, data).get("model")

    monkeypatch.setattr(reading, "read_document", read)


def _grade(scenario: Scenario, files: dict[str, bytes]) -> float:
    return scenario.grade(FilesHome(files))


def _scenarios(family: Family, seeds: range = SEEDS) -> list[Scenario]:
    return [family.scenario(level, seed) for level in LEVELS for seed in seeds]


def test_families_cover_every_application() -> None:
    apps = {family.app for family in FAMILIES.values()}
    assert len(FAMILIES) >= 60
    assert apps == {
        "editor", "files", "calculator", "settings", "terminal", "calc", "writer", "browser",
    }  # fmt: skip


@EACH_FAMILY
@pytest.mark.parametrize("seeds", share([range(1), range(1, 16)], of=2))
def test_initial_files_earn_nothing_and_the_solution_earns_everything(
    family: Family, seeds: range
) -> None:
    for scenario in _scenarios(family, seeds):
        assert _grade(scenario, dict(scenario.files)) == 0.0, scenario.goal
        assert _grade(scenario, scenario.solve()) == 1.0, scenario.goal
        assert _grade(scenario, {}) == 0.0, scenario.goal


@pytest.mark.slow
@EACH_FAMILY
def test_near_misses_earn_nothing(family: Family) -> None:
    for scenario in _scenarios(family, range(2)):
        for name, files in near_misses(scenario):
            assert _grade(scenario, files) == 0.0, (name, scenario.goal)


@pytest.mark.slow
@EACH_FAMILY
def test_solution_of_another_seed_earns_nothing(family: Family) -> None:
    for level in LEVELS:
        scenarios = [family.scenario(level, seed) for seed in range(7)]
        solutions = [{p: d for p, d in s.solve().items() if s.files.get(p) != d} for s in scenarios]
        wins = sum(
            _grade(scenario, {**scenario.files, **solution})
            for n, scenario in enumerate(scenarios)
            for m, solution in enumerate(solutions)
            if n != m
        )
        assert wins / (7 * 6) <= 0.01, f"level {level}"


@EACH_FAMILY
def test_goals_vary_and_name_what_decides(family: Family) -> None:
    for level in LEVELS:
        goals = [family.scenario(level, seed).goal for seed in range(12)]
        shapes = {
            re.sub(r'"[^"]*"|[\w/.-]*[\d/][\w/.-]*', "_", goal).split("_")[0] for goal in goals
        }
        assert len(shapes) >= 2, goals[0]
        for goal in goals:
            assert goal[0].isupper() or goal[0] in '"/' or "." in goal.split()[0], goal
            assert not set("{}") & set(goal), goal
            assert not re.search(r"\b(\w+) \1\b|the (\w+) the \2\b", goal.lower()), goal


@EACH_FAMILY
def test_higher_levels_have_distracting_files_and_applications(family: Family) -> None:
    for seed in SEEDS:
        one, three, four = (family.scenario(level, seed) for level in (1, 3, 4))
        assert len(three.files) > len(one.files)
        assert len(three.launch) > 1
        assert len({command[0] for command in four.launch}) >= 2, four.goal


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if name.startswith(("summarize", "multiply", "count_m"))]
)
def test_numbers_in_place_of_formulas_earn_nothing(name: str) -> None:
    for scenario in _scenarios(FAMILIES[name]):
        files = without_formulas(scenario).solve()
        assert _grade(scenario, files) == 0.0, scenario.goal


def test_what_cannot_be_read_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    with SandboxHome(opened(tmp_path)) as home:
        for name in ("folder", "link", "pipe"):
            assert not Gone(path=name).holds(home)
        assert Gone(path="pipe/in").holds(home)
        assert Gone(path="none/in").holds(home)


def test_what_is_behind_a_link_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved/zebra.txt").touch()
    (tmp_path / "Documents").symlink_to("moved")
    with SandboxHome(opened(tmp_path)) as home:
        assert not Gone(path="Documents/zebra.txt").holds(home)
        assert not Listing(folder="Documents", expected=frozenset()).holds(home)
        assert not Listing(folder="none", expected=frozenset()).holds(home)


def test_text_may_begin_with_the_byte_order_mark_of_writer() -> None:
    check = Text(path="a.txt", text="one\ntwo\n")
    assert check.holds(FilesHome({"a.txt": b"\xef\xbb\xbfone\ntwo"}))
    assert not check.holds(FilesHome({"a.txt": b"\xef\xbb\xbf\xef\xbb\xbfone\ntwo"}))


def test_number_formats_may_separate_thousands_but_keep_their_decimals() -> None:
    def holds(form: str) -> bool:
        book = [Sheet(name="Stock", cells={"A1": Cell(value=5, number_format=form)})]
        return check.holds(FilesHome({"a.xlsx": xlsx(book)}))

    cell = Cell(value=5, number_format="0.00")
    book = (Sheet(name="Stock", cells={"A1": cell}),)
    check = Workbook(path="a.xlsx", book=book, looks=("number_format",))
    assert holds("0.00")
    assert holds("#,##0.00")
    assert not holds("0.0")
    assert not holds("General")


@EACH_FAMILY
def test_an_oracle_plans_every_scenario(family: Family) -> None:
    for scenario in _scenarios(family):
        assert oracle.works_of(scenario), scenario.goal


def test_plan_refuses_what_it_cannot_do() -> None:
    scenario = FAMILIES["enter_values"].scenario(1, 0)
    (check,) = scenario.checks
    assert isinstance(check, Workbook)
    painted = replace(scenario, checks=(replace(check, looks=("fill",)),))
    with pytest.raises(moves.NoOracleError, match="Workbook"):
        list(oracle.plan(painted, NoWindows()))


def test_plan_refuses_a_desktop_without_windows() -> None:
    scenario = FAMILIES["append_line"].scenario(1, 0)
    with pytest.raises(moves.NoOracleError, match="no window"):
        list(oracle.plan(scenario, NoWindows()))


def test_plan_refuses_to_go_on_without_its_window() -> None:
    with pytest.raises(moves.NoOracleError, match="'Rename Sheet'"):
        list(moves.await_window("Rename Sheet", NoWindows()))


def test_a_window_with_a_new_title_is_not_closed_twice() -> None:
    closing = Action(kind=ActionKind.KEY, keys=("alt", "f4"))
    opening = Action(kind=ActionKind.KEY, keys=("ctrl", "o"))
    moves = oracle.plan(FAMILIES["append_line"].scenario(1, 0), Page())
    before = list(itertools.takewhile(lambda move: move != opening, moves))
    assert before.count(closing) == 1
