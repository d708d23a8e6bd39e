"""The Python blocks of the pages on environments run as they are written."""

from pathlib import Path

import gymnasium
import pytest
from fakes.pages import python_blocks

DOCS = Path(__file__).parents[2] / "docs" / "environments"
BLOCKS = [
    (name, number, code)
    for name in ("wrappers.md", "audits.md", "gymnasium.md", "search.md")
    for number, code in enumerate(python_blocks(DOCS / name))
]


@pytest.mark.parametrize(
    ("name", "number", "code"), BLOCKS, ids=[f"{name}-{number}" for name, number, _ in BLOCKS]
)
def test_block_runs(
    name: str,
    number: int,
    code: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        exec(compile(code, f"{name} block {number}", "exec"), {"__name__": "docs"})
    finally:
        gymnasium.registry.pop("envkit/my-mixture-v0", None)
    assert capsys.readouterr().out.strip()


def test_pages_name_every_wrapper() -> None:
    from envkit import wrappers

    page = (DOCS / "wrappers.md").read_text(encoding="utf-8")
    public = [name for name in wrappers.__all__ if isinstance(getattr(wrappers, name), type)]
    bases = {"EnvWrapper", "ImageWrapper", "Member"}
    assert [name for name in public if name not in bases and f"`{name}`" not in page] == [
        "LevelProgress"
    ]
    assert all(f"`{name}`" in page for name in wrappers.WRAPPERS)
