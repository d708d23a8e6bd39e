"""How adapters reach the suite: entry points, the command, and the class that others subclass."""

import json
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.deliveries import on_row, projection, shift_mask
from fakes.trajectories import Context, Reply, build, picture

from envkit.errors import ContractError, UnknownNameError
from envkit.trajectory import save
from envkit_conformance import (
    AdapterConformance,
    Shape,
    load_adapters,
    registry,
    save_recordings,
    shipped_recordings,
)

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
HERE = "test_conformance_adapters_points"
GOOD = projection(Shape.STEPS)
BAD = projection(Shape.WHOLE, on_row(0, shift_mask(-1)))


def several() -> list[Any]:
    """Return projections, as the function of an entry point may."""
    return [GOOD, BAD]


def absent() -> list[Any]:
    raise ModuleNotFoundError("No module named 'trainer'", name="trainer")


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install entry points that name this module's objects."""
    import sys

    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    entries = [
        EntryPoint(name=name, value=f"{HERE}:{value}", group=registry.GROUP)
        for name, value in (("good", "GOOD"), ("both", "several"), ("gone", "absent"))
    ]
    monkeypatch.setattr(registry, "entry_points", _installed(entries))


def _installed(entries: list[EntryPoint]) -> Callable[..., list[EntryPoint]]:
    def entry_points(*, group: str) -> list[EntryPoint]:
        return [entry for entry in entries if entry.group == group]

    return entry_points


def test_adapters_are_found_by_entry_point_and_the_core_is_always_there(points: None) -> None:
    found = {one.name: one for one in load_adapters()}
    assert list(found) == ["core", "both", "gone", "good"]
    assert [one.name for one in found["core"].members] == [
        "core-whole",
        "core-steps",
        "core-merged",
    ]
    assert found["good"].members == (GOOD,)
    assert found["both"].members == (GOOD, BAD)
    assert (found["gone"].members, found["gone"].missing) == (
        (),
        "No module named 'trainer'",
    )


def test_unknown_adapter_names_the_nearest(points: None) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'good'"):
        load_adapters(("goood",))


@pytest.mark.parametrize(
    ("value", "message"),
    [("HERE", "must hold Projections, got str"), ("no_such", "fails to import: AttributeError")],
)
def test_entry_point_without_projection_is_refused(points: None, value: str, message: str) -> None:
    entry = EntryPoint(name="odd", value=f"{HERE}:{value}", group=registry.GROUP)
    with pytest.raises(ContractError, match=message):
        load_adapters(("odd",), entries=[entry])


def test_declared_entry_points_name_modules_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points: dict[str, str] = project["entry-points"].get(registry.GROUP, {})
    for name, value in points.items():
        module, _, attribute = value.partition(":")
        assert (ROOT / "adapters" / module.replace(".", "/")).with_suffix(".py").is_file(), value
        assert attribute == "PROJECTIONS"
        assert module == f"envkit_{name}.conformance"
    plugin: dict[str, str] = project["entry-points"]["pytest11"]
    assert plugin == {"envkit_conformance.pytest_plugin": "envkit_conformance.pytest_plugin"}


# ---- the command


def test_command_shows_a_table_and_succeeds(points: None) -> None:
    shown = run_envkit("conformance", "--adapter", "core", "--adapter", "good")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["recording", "core-whole", "core-steps", "core-merged", "planted"]
    assert ["thinking_rerender", "refused", "pass", "pass", "pass"] in [x.split() for x in lines]
    count = len(shipped_recordings())
    assert lines[-1] == (
        f"{4 * count} deliveries: {4 * count - 5} passed, 5 refused as declared, 0 failed"
    )


def test_command_names_the_first_difference_and_fails(points: None) -> None:
    shown = run_envkit("conformance", "--adapter", "both")
    assert shown.code == 1
    assert (
        "planted, recording text: fail: mask differs at response token 17: expected 1, got 0; "
        "the mask is shifted left by 1"
    ) in shown.out.splitlines()


def test_command_says_what_is_not_installed(points: None) -> None:
    shown = run_envkit("conformance", "--adapter", "gone")
    assert shown.code == 1  # it was asked for by name
    assert "gone: not installed (No module named 'trainer')" in shown.out
    everything = run_envkit("conformance", "--json")
    data = json.loads(everything.out)
    assert data["not_installed"] == {"gone": "No module named 'trainer'"}
    assert {one["projection"] for one in data["outcomes"]} > {"core-whole", "planted"}


def test_command_takes_other_recordings(points: None, tmp_path: Path) -> None:
    run = build([Reply()], prompt=Context(images=(picture(1),)))
    save(run, tmp_path / "trajectories.jsonl")
    shown = run_envkit("conformance", "--adapter", "core", "--recordings", tmp_path)
    assert shown.code == 0
    assert shown.out.splitlines()[1].split()[0] == "episode-0"
    assert "image tensors are not compared: add --model" in shown.err
    wrong = run_envkit("conformance", "--model", "anything")
    assert wrong.code == 2
    assert "--model needs --recordings" in wrong.last_error


# ---- the class and the plugin


class TestCore(AdapterConformance):
    """The class as a third party uses it: every recording is one test."""

    projection = load_adapters(("core",))[0].members[0]


THIRD_PARTY = """
from dataclasses import replace
from envkit_conformance import *

def deliver(trajectory, *, filler_id):
    (row,) = expected_rows(trajectory, Shape.WHOLE, filler_id=filler_id)
    return [replace(DeliveredRow.of(row), loss_mask=[1] * len(row.response_ids))]

class TestMine(AdapterConformance):
    projection = Projection(name="mine", shape=Shape.WHOLE, deliver=deliver)

def test_function(envkit_recording):
    assert envkit_recording.name
"""


@pytest.mark.slow
def test_third_party_gets_a_test_for_each_recording_and_the_difference(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    chosen = [one for one in shipped_recordings() if one.name in ("text", "turn_tokens")]
    save_recordings([one.trajectory for one in chosen], tmp_path / "own")
    pytester.makepyfile(test_mine=THIRD_PARTY)
    result = pytester.runpytest_subprocess(
        "-p",
        "envkit_conformance.pytest_plugin",
        f"--envkit-recordings={tmp_path / 'own'}",
        "-p",
        "no:cacheprovider",
    )
    result.assert_outcomes(passed=3, failed=1)
    text = result.stdout.str()
    assert "mine, recording text: fail: mask differs at response token 18" in text
