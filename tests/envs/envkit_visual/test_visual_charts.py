"""Rules of the charts: what is right, what is close enough, and what is no answer."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from envkit_visual.charts import WORLDS
from envkit_visual.charts.dials import Clock, ClockState, Gauge, GaugeState, Tune, TuneState
from envkit_visual.charts.plot import Axis
from envkit_visual.charts.readings import (
    Bars,
    BarsState,
    Heat,
    HeatState,
    Lines,
    LinesState,
    Outlier,
    OutlierState,
    Pie,
    PieState,
)
from envkit_visual.world import LEVELS

BARS = BarsState(
    axis=Axis(low=0, step=20, steps=10),
    groups=("Oslo", "Lima"),
    series=("East", "West"),
    values=(40.0, 77.0, 120.0, 199.0),
    asked=2,
)
LINES = LinesState(
    across=Axis(low=100, step=10, steps=10),
    up=Axis(low=0, step=1, steps=10),
    names=("Oslo", "Lima", "Cairo"),
    lines=((5.0,) * 11, (1.0, 1.0, 1.0, 4.0, 8.0, 8.0, 2.0, 2.0, 2.0, 2.0, 2.0), (4.9,) * 11),
    asked=(0, 1),
)
TUNE = TuneState(
    gains=((2, 0, 0), (0, -1, 1), (0, 0, 3)), knobs=(0, 0, 0), aims=(4, -5, 6), marks=(20, 30, 40)
)


def verdict(world: Any, state: Any, given: str) -> str:
    """Return what an answer gets: right, wrong or invalid."""
    outcome = world.act(state, given)
    return "invalid" if outcome.error is not None else outcome.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("120", "Right."),
        ("115", "Right."),
        ("125.0", "Right."),
        ("125.1", "Wrong."),
        ("77", "Wrong."),
        ("-0", "Wrong."),
        ("about 120", "invalid"),
        ("1e2", "invalid"),
        ("nan", "invalid"),
        ("\u0661\u0662", "invalid"),
    ],
)
def test_bars_accept_a_quarter_of_a_step(given: str, said: str) -> None:
    assert Bars().ask(BARS) == "What is the value of Lima, East?"
    assert verdict(Bars(), BARS, given) == said


@pytest.mark.parametrize("size", range(4, 25))
def test_bars_have_at_most_as_many_bars_as_asked(size: int) -> None:
    state = Bars().create(random.Random(size), size)
    assert 0 <= size - len(state.values) < 4
    assert len(state.values) == len(state.groups) * len(state.series)


@pytest.mark.parametrize(
    ("given", "said"),
    [("132.5", "Right."), ("130", "Right."), ("135.1", "Wrong."), ("155", "Wrong.")],
)
def test_lines_take_the_first_crossing(given: str, said: str) -> None:
    assert Lines().value(LINES) == 132.5
    assert verdict(Lines(), LINES, given) == said


@pytest.mark.parametrize("level", LEVELS)
def test_lines_value_agrees_with_a_fine_scan(level: int) -> None:
    world = Lines()
    for seed in range(30):
        state = world.create(random.Random(seed), world.levels[level - 1])
        first, second = (state.lines[index] for index in state.asked)

        def gap(x: float, first: Any = first, second: Any = second) -> float:
            at, part = min(int(x), 9), x - min(int(x), 9)
            lines = ((1 - part) * line[at] + part * line[at + 1] for line in (first, second))
            return next(lines) - next(lines)

        crossed = next(k for k in range(1, 1001) if gap(k / 100) * gap(0) <= 0)
        assert abs(world.value(state) - state.across.at(crossed / 100)) <= state.across.step / 50


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("K, B, T", "Right."),
        ("kbt", "Right."),
        ("K > B > T", "Right."),
        ("B, K, T", "Wrong."),
        ("K, B", "Wrong."),
        ("K, K, B", "invalid"),
        ("K, 2", "invalid"),
        (",", "invalid"),
    ],
)
def test_pie_compares_the_order_of_letters(given: str, said: str) -> None:
    assert verdict(Pie(), PieState(letters="TKB", shares=(200, 500, 300)), given) == said


@pytest.mark.parametrize("size", range(4, 10))
def test_pie_slices_fill_the_pie_and_differ(size: int) -> None:
    for seed in range(50):
        shares = Pie().create(random.Random(seed), size).shares
        assert sum(shares) == 1000
        ordered = sorted(shares)
        assert min(after - before for before, after in itertools.pairwise(ordered)) >= 10


def test_outlier_takes_a_click_on_the_odd_point_only() -> None:
    world, state = Outlier(), OutlierState(points=((224, 224), (236, 224), (100, 100)), odd=1)
    assert verdict(world, state, world.answer(state)) == "Right."
    assert verdict(world, state, "515, 500") == "Right."
    assert verdict(world, state, "510, 500") == "Wrong."
    assert verdict(world, state, "[526 526]") == "Right."
    assert verdict(world, state, "527, 529") == "Wrong."
    assert verdict(world, state, "527") == "invalid"
    assert verdict(world, state, "1e999, 4") == "invalid"
    assert world.act(state, "500, 250").mark == {"kind": "click", "x": 224.0, "y": 112.0}


def test_heat_reads_the_cell_of_a_row_and_a_column() -> None:
    state = HeatState(
        side=3,
        shades=(0, 1, 2, 3, 4, 5, 6, 7, 0),
        values=tuple(range(50, 130, 10)),
        asked=5,
    )
    assert Heat().ask(state) == "What is the value of cell B3?"
    assert verdict(Heat(), state, "100") == "Right."
    assert verdict(Heat(), state, "100.5") == "Wrong."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("12:01", "Right."),
        ("11:59", "Right."),
        ("0:03", "Right."),
        ("23:59", "Right."),
        ("12:04", "Wrong."),
        ("6:01", "Wrong."),
        ("24:00", "invalid"),
        ("12:60", "invalid"),
        ("noon", "invalid"),
        ("\u0661\u0662:01", "invalid"),
    ],
)
def test_clock_accepts_two_minutes_around_the_dial(given: str, said: str) -> None:
    assert Clock().answer(ClockState(minutes=1, tilt=90)) == "12:01"
    assert verdict(Clock(), ClockState(minutes=1, tilt=90), given) == said
    assert Clock().is_right(ClockState(minutes=1, tilt=90), given) is (said == "Right.")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("12, 340", "Right."),
        ("12.5,335", "Right."),
        ("12, 346", "Wrong."),
        ("340, 12", "Wrong."),
        ("12", "Wrong."),
        ("12, 340, 1", "Wrong."),
        ("12,", "invalid"),
        ("12 and 340", "invalid"),
    ],
)
def test_gauge_needs_all_dials_in_order(given: str, said: str) -> None:
    axes = (Axis(low=10, step=2, steps=5), Axis(low=300, step=20, steps=4))
    assert verdict(Gauge(), GaugeState(axes=axes, values=(12.0, 340.0)), given) == said


def test_tune_turns_a_knob_up_to_its_end() -> None:
    outcome = Tune().act(TUNE, "A +3")
    assert (outcome.state.knobs, outcome.text) == ((3, 0, 0), "Turned.")
    outcome = Tune().act(outcome.state, "a 30")
    assert (outcome.state.knobs, outcome.text) == ((20, 0, 0), "The knob stops at its end.")
    assert Tune().plan(outcome.state) == ["A -16", "B -5", "C +6"]
    for bad in ("A", "D +1", "A +0", "A +1.5", "A 1e3", "A + 3"):
        assert Tune().act(TUNE, bad).error is not None


def test_tune_needles_follow_the_gains() -> None:
    assert "needle 12, mark 20" in Tune().tell(TUNE)
    turned = Tune().act(TUNE, "C +2").state
    assert Tune().tell(turned).splitlines()[1:3] == ["needle 21, mark 30", "needle 28, mark 40"]
    far = Tune().act(TUNE, "C +20").state
    assert Tune().tell(far).splitlines()[2] == "needle off the scale, mark 40"
    solved = replace(TUNE, knobs=TUNE.aims)
    assert Tune().is_solved(solved)
    assert Tune().plan(solved) == []


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_tune_plan_is_the_only_setting_of_the_knobs(level: int) -> None:
    """Try all settings: one brings the needles to their marks, and it turns every knob."""
    world = Tune()
    state = world.create(random.Random(level), world.levels[level - 1])
    settings = itertools.product(range(-20, 21), repeat=3)

    def is_on_marks(knobs: tuple[int, ...]) -> bool:
        turns = [aim - knob for aim, knob in zip(state.aims, knobs, strict=True)]
        return not any(sum(g * t for g, t in zip(row, turns, strict=True)) for row in state.gains)

    assert [knobs for knobs in settings if is_on_marks(knobs)] == [state.aims]
    assert len(world.plan(state)) == 3


def test_charts_are_eight() -> None:
    assert len({world.name for world in WORLDS}) == 8
