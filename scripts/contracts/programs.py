"""Agents from npm for the clients' contract tests: installed once, kept outside the checkout."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from environment import cache_root, locked, say

PACKAGES: Final = (
    "@anthropic-ai/claude-code@2.1.197",
    "@openai/codex@0.169.0",
    "opencode-ai@1.18.33",
)
_INSTALL_TIMEOUT_S: Final = 10 * 60


def ensure_programs(name: str) -> Path | None:
    """Return the folder of the programs, installing them if needed; None if npm cannot.

    Args:
        name: The recipe whose tests use them, for its lock and lines of progress.
    """
    version = "-".join(package.rpartition("@")[2] for package in PACKAGES)
    folder = cache_root() / f"npm-{version}"
    found = folder / "node_modules" / ".bin"
    npm = shutil.which("npm")
    with locked("npm"):
        if found.exists():
            return found
        if npm is None:
            say(name, "npm is not installed: no tests of Claude Code, Codex and opencode")
            return None
        started = time.monotonic()
        say(name, f"npm: installing {', '.join(PACKAGES)}; takes 1 GB of disk")
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            command = [
                npm,
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(partial),
                *PACKAGES,
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
            )
            problem = done.stderr if done.returncode else None
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem is not None:
            shutil.rmtree(partial, ignore_errors=True)
            say(name, f"npm failed, so no tests of these programs:\n{problem[-2000:]}")
            return None
        partial.rename(folder)
        say(name, f"npm: installed in {time.monotonic() - started:.0f} s")
    return found
