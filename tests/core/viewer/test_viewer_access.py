"""Every page of the viewer fits its window, and axe-core finds no fault for who does not see it."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from fakes.branching import SUMMARY
from fakes.branching import rewritten as rewritten_by
from fakes.chromium import running_chromium
from fakes.marked_runs import EVERY_MARK, forked_run, grouped_run, marked, rewritten
from fakes.needs import CHROMIUM, packages
from fakes.served import served
from fakes.ui_pages import Scheme, overflow

from envkit.trajectory import save
from envkit.trajectory.storage import FILE_NAME

pytestmark = [pytest.mark.slow, CHROMIUM.mark, packages("axe_playwright_python").mark]

PAGES = ("#/", "#/?by=prefix", "#/?by=environment&pick=one,two", "#/?compare=one,two",
         "#/?compare=one,two&across=run&metric=tokens", "#/?first=one&second=two", "#/one",
         "#/one/episodes", "#/one/episodes?view=list&q=i+go", "#/one/e/6?t=2", "#/one/e/6?vs=7",
         "#/special/e/1", "#/special/e/2?t=3", "#/nothing", "#/tree", "#/tree/episodes?show=solved",
         "#/tree/episodes?view=list", "#/tree/e/2?t=2", "#/tree/e/2?vs=3&t=4",
         "#/asked/e/1?t=3")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with everything that a page draws, a certificate and an evaluation."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        save(grouped_run(groups=3), root / name / FILE_NAME)
    save(forked_run(), root / "tree" / FILE_NAME)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asyncio.run, rewritten_by(SUMMARY)).result()
    save([asked], root / "asked" / FILE_NAME)
    every = marked([EVERY_MARK, []], rewards=[-0.5, 1.0])
    save([every, rewritten()], root / "special" / FILE_NAME)
    line = {"name": "leaks", "verdict": "fail", "value": 0.3, "detail": "blind", "evidence": ["x"]}
    certificate = {"target": "a", "is_complete": True, "passed": False, "lines": [line]}
    (root / "certificate.json").write_text(json.dumps(certificate))
    estimate = {"mean": 0.5, "interval": {"low": 0.2, "high": 0.9}, "tasks": 9}
    figures = {"env_id": "a", "tag": None, "tasks": 9, "success": estimate, "reward": estimate}
    document = {"schema": 1, "counting": {}, "is_complete": True, "lines": [figures]}
    (root / "eval.json").write_text(json.dumps({**document, "runs": {"one": {}}}))
    return root


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 390])
def test_pages_fit_and_have_no_fault_that_axe_knows(
    width: int, scheme: Scheme, folder: Path
) -> None:
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    with running_chromium() as browser, served(folder) as address:
        page = browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",
            bypass_csp=True,  # of axe itself
        )
        page.goto(address)
        page.locator(".docs").first.wait_for()
        found: list[Any] = []
        for place in PAGES:
            page.evaluate("place => { location.hash = place }", place)
            page.wait_for_timeout(500)
            page.evaluate(
                "document.querySelectorAll('main details').forEach(one => one.open = true)"
            )
            page.wait_for_timeout(100)
            assert overflow(page) == 0, place
            page.evaluate(axe)
            violations = page.evaluate("axe.run(document).then(one => one.violations)")
            found += [(place, one["id"], [n["html"][:90] for n in one["nodes"][:3]])
                      for one in violations]  # fmt: skip
        assert found == []
