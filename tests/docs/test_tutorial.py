"""The tutorial works as it is written, in its own folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
TEXT = TUTORIAL.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", TEXT, re.S)
SET_UP = ("make setup", "source .venv/bin/activate")
INSTALL = "pip install -e '.[dev]'"
INSTALL_HERE = 'pip install -q --no-deps --no-build-isolation --no-index --target "$SITE" .'
"""Beside this environment instead of into it."""


def script() -> str:
    """All blocks in order, as one script."""
    lines = ["set -eu"]
    for kind, block in BLOCKS:
        if kind == "python":
            lines += ["python - <<'END'", block, "END"]
            continue
        for line in block.splitlines():
            assert "pip install" not in line or line == INSTALL
            if line not in SET_UP:
                lines.append(INSTALL_HERE if line == INSTALL else line)
    return "\n".join(lines)


def test_tutorial_names_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert [link for link in links if not (TUTORIAL.parent / link).exists()] == []
    assert (TUTORIAL.parents[1] / "examples" / "learn_canary_trl.py").exists()


@pytest.mark.slow
def test_tutorial_works_as_written(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run(
        ["bash", "-c", script()],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(site),
            "SITE": str(site),
        },
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for sign in (
        "all sound",
        "contract  pass",
        "passed",
        "trained",
        "of the prompt",
    ):
        assert sign in done.stdout
    assert (tmp_path / "runs" / "dots.parquet").stat().st_size > 0
