"""The pictures of the flows are what their runs draw."""

import importlib.util
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")  # of the tiny model whose codec the runs use

ROOT = Path(__file__).parents[2]
NAMES = ("task-to-row", "request-to-segment", "argv-to-folder", "gateway-to-ledger")


@pytest.fixture(scope="module")
def flows() -> Generator[ModuleType]:
    spec = importlib.util.spec_from_file_location("flows", ROOT / "scripts" / "docs" / "flows.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["flows"] = importlib.util.module_from_spec(spec)
    path = [*sys.path]
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    del sys.modules["flows"]


def test_flows_are_those_with_a_page(flows: ModuleType) -> None:
    pages = (ROOT / "docs" / "concepts" / "flows").glob("*.md")
    assert {page.stem for page in pages} == set(flows.FLOWS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_picture_is_what_the_run_draws(flows: ModuleType, name: str) -> None:
    flow = flows.FLOWS[name]
    drawn = (flows.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == flows.draw(flow, flows.trace(flow)), "run scripts/docs/flows.py"


def test_missed_station_is_named(flows: ModuleType) -> None:
    flow = flows.FLOWS["task-to-row"]
    first, second, *others = flow.stations
    with pytest.raises(flows.FlowError, match=f"did not pass {first.place}"):
        flows.trace(replace(flow, stations=(second, first, *others)))


def test_station_without_its_value_is_named(flows: ModuleType) -> None:
    flow = flows.FLOWS["task-to-row"]
    empty = flows.Station(place="envkit.rollout.host:EnvHost.reset", takes="task")
    with pytest.raises(flows.FlowError, match=r"EnvHost\.reset in its place, or without task"):
        flows.trace(replace(flow, stations=(empty,)))


@pytest.mark.parametrize(
    ("place", "takes", "why"),
    [
        ("envkit.rollout.loop:Episode.start", "self", "does not exist"),
        ("envkit.rollout.loop:Episode.run", "later", "no parameter 'later'"),
    ],
)
def test_unknown_station_is_refused(flows: ModuleType, place: str, takes: str, why: str) -> None:
    with pytest.raises(flows.FlowError, match=why):
        flows.Station(place=place, takes=takes).given()
