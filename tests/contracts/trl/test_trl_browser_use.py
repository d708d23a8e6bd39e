"""The example that trains behind a real browser-use agent, with a real Chromium, in two steps."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.installed import ROOT, install_metadata

PYTHON = os.environ.get("ENVKIT_BROWSER_USE_PYTHON")
pytestmark = pytest.mark.skipif(
    PYTHON is None or shutil.which("chromium") is None,
    reason="needs chromium, and the environment of `make contract-clients`",
)


def test_trl_trains_behind_a_browser_use_agent(tmp_path: Path) -> None:
    path = [str(install_metadata(tmp_path)), os.environ.get("PYTHONPATH", "")]
    script = ROOT / "examples" / "train_browser_use.py"
    command = [sys.executable, str(script), "--steps", "2", "--agent-python", str(PYTHON)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"sampled 8, trained 8, mismatch \de-0[56789]", done.stdout), done.stdout
