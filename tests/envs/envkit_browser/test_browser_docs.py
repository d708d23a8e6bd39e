"""The page on the browser: its Python runs, and it names every fault."""

import subprocess
import sys
from pathlib import Path

import pytest
from fakes.needs import BROWSER
from fakes.pages import python_blocks

from envkit_browser.driver import Trouble

PAGE = Path(__file__).parents[3] / "docs" / "environments" / "browser.md"
DOC = PAGE.read_text("utf-8")
BLOCKS = python_blocks(PAGE)


@BROWSER.mark
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_page_names_the_troubles_that_its_table_is_about() -> None:
    named = {Trouble.BROWSER_DIED, Trouble.RENDERER_CRASHED, Trouble.HUNG, Trouble.SOCKET_CLOSED}
    assert all(f"`{trouble.value}`" in DOC for trouble in named)
