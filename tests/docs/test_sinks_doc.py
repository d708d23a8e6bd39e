"""The examples of docs/sinks.md run as they are written, and its tables are complete."""

import re
import tomllib
from pathlib import Path

import pytest
from fakes.pages import python_blocks

from envkit.cli.sinks import GROUP

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sinks.md"
BLOCKS = python_blocks(PAGE)
PRINTED = (
    "['board', 'images', 'metrics.json', 'rows.parquet', 'trajectories.jsonl']\n",
    "episode_id, env_id, group_id, rollout_id, role, seed\n",
)


@pytest.mark.slow
@pytest.mark.parametrize(("block", "printed"), list(zip(BLOCKS, PRINTED, strict=True)))
def test_an_example_prints_what_it_says(
    block: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(block, "docs/sinks.md", "exec"), {"__name__": "sinks_doc"})

    assert capsys.readouterr().out == printed


def test_every_sink_is_on_the_page() -> None:
    rows = re.findall(r"^\| `([a-z]+)", PAGE.read_text(encoding="utf-8"), re.M)
    with (ROOT / "pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)["project"]
    assert set(project["entry-points"][GROUP]) <= set(rows)
