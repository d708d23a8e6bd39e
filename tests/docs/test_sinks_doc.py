"""The examples of docs/sinks.md run as they are written, and its tables are complete."""

import dataclasses
from pathlib import Path

import pytest
from fakes.pages import python_blocks

from envkit.cli.sinks import SinkChoice

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"
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


def test_every_option_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for field in dataclasses.fields(SinkChoice):
        assert f"--{field.name.replace('_', '-')}" in text
