"""The pages on failures name every ending and kind, and their example prints what it says."""

import dataclasses
import os
import re
from pathlib import Path

import pytest
from contracts.effects import effects_table
from fakes.pages import python_blocks
from fakes.processes import run_python

from envkit.errors import FaultKind
from envkit.rollout import FaultPolicy, RetryBudget
from envkit.trajectory import FaultPlace, StopReason

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "recovery.md"
DOC = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*StopReason, *FaultKind, *FaultPlace, *FaultPolicy])
def test_page_names_every_ending_kind_place_and_policy(name: str) -> None:
    assert f"`{name}`" in DOC


def test_the_page_on_cut_replies_faults_and_zeros_is_short() -> None:
    assert len((DOCS / "failures.md").read_text(encoding="utf-8").split()) < 900


def test_page_states_the_defaults_of_the_budget() -> None:
    stated = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|$", DOC, re.M))
    fields = {f.name: f.default for f in dataclasses.fields(RetryBudget) if f.name != "backoff"}
    assert {name: float(value) for name, value in stated.items()} == fields


def test_page_shows_what_the_trainers_suites_measured() -> None:
    """With ENVKIT_WRITE_DOCS=1 the table is written first."""
    page = PAGE.read_text(encoding="utf-8")
    start, end = "<!-- effects -->\n", "<!-- /effects -->"
    before, _, rest = page.partition(start)
    shown, _, after = rest.partition(end)
    table = f"\n{effects_table()}\n"
    if os.environ.get("ENVKIT_WRITE_DOCS"):
        PAGE.write_text(f"{before}{start}{table}{end}{after}", encoding="utf-8")
        shown = table
    assert shown == table


@pytest.mark.slow
def test_example_prints_what_the_page_says() -> None:
    (code,) = python_blocks(PAGE)
    (printed,) = re.findall(r"```\n(\{.*?)```", DOC, re.S)
    stated, found = (
        [set(re.findall(r"\(.*?\)", line)) for line in text.splitlines()]
        for text in (printed, run_python("-c", code))
    )
    assert found == stated
