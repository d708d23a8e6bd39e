"""The README's examples run as they are written."""

from pathlib import Path

import pytest
from fakes.pages import python_blocks

README = Path(__file__).parents[2] / "README.md"
BLOCKS = python_blocks(README)


def test_readme_is_short_and_has_examples() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
    assert len(BLOCKS) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_example_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[number], f"README block {number}", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.strip()
