"""The page on agents works as it is written; this environment has an OpenAI client."""

import os
import sys
from pathlib import Path

import pytest
from fakes.installed import ROOT, install_metadata
from fakes.pages import run_page


def test_page_on_agents_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, folder = tmp_path / "bin" / "envkit", tmp_path / "folder"
    command.parent.mkdir()
    folder.mkdir()
    paths = [
        str(install_metadata(tmp_path)),
        *(str(ROOT / one) for one in (".", "envs", "adapters")),
    ]
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[1:1] = {paths!r}\n"
        "from envkit.cli import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(command.parent), os.environ["PATH"]]))
    monkeypatch.setenv("HOME", str(folder))

    assert run_page(ROOT / "docs" / "gateway.md", folder) >= 6
