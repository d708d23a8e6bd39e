"""The example that trains behind a real browser-use agent, with a real Chromium, in two steps."""

import os
import re
import subprocess
import sys
from pathlib import Path

from fakes.installed import ROOT, install_metadata
from fakes.needs import BROWSER_USE, DEBIAN_CHROMIUM

PYTHON = os.environ.get("ENVKIT_BROWSER_USE_PYTHON")
pytestmark = [BROWSER_USE.mark, DEBIAN_CHROMIUM.mark]


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
