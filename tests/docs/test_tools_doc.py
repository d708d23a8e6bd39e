"""The examples of docs/tools.md run as they are written."""

from pathlib import Path

import pytest
from fakes.pages import python_blocks

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
BLOCKS = python_blocks(PAGE)
PRINTED = (
    "144\n1.0 True\n(",
    "lookup ok a: found\nlookup ok b: found\nlookup ok c: found\n",
    "1.1 {'short': 0.1, 'right': 1.0}\n",
    "['answered', 'correct', 'brief']\n",
)


def test_an_environment_of_tools_takes_fifteen_lines() -> None:
    lines = [line for line in BLOCKS[0].split("env.reset")[0].splitlines() if line.strip()]

    assert len(lines) <= 15


@pytest.mark.parametrize(("block", "printed"), list(zip(BLOCKS, PRINTED, strict=True)))
def test_an_example_prints_what_it_says(
    block: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(block, "docs/tools.md", "exec"), {"__name__": "tools_doc"})

    assert capsys.readouterr().out.startswith(printed)
