"""Programs from npm for contract tests: installed once, kept outside the checkout."""

import hashlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from environment import cache_root, locked, say

PACKAGES: Final = (
    "@anthropic-ai/claude-code@2.1.332",
    "@openai/codex@0.171.0",
    "opencode-ai@1.18.33",
    "@qwen-code/qwen-code@0.24.4",
)
MCP_PACKAGES: Final = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/inspector@0.15.0",
    "@modelcontextprotocol/sdk@1.32.2",
)
"""Foreign servers and clients of MCP."""
_INSTALL_TIMEOUT_S: Final = 10 * 60


def ensure_programs(name: str, packages: Sequence[str] = PACKAGES) -> Path | None:
    """Return the folder of the programs, installing them if needed; None if npm cannot.

    Args:
        name: The recipe whose tests use them, for its lock and lines of progress.
        packages: Pinned packages.
    """
    digest = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    folder = cache_root() / f"npm-{digest}"
    found = folder / "node_modules" / ".bin"
    npm = shutil.which("npm")
    with locked("npm"):
        if folder.exists():
            return found
        if npm is None:
            say(name, f"npm is not installed: no tests of {', '.join(packages)}")
            return None
        started = time.monotonic()
        say(name, f"npm: installing {', '.join(packages)}; takes up to 1.4 GB of disk")
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        options = ["--no-audit", "--no-fund", "--prefix", str(partial)]
        try:
            partial.mkdir(parents=True)
            done = subprocess.run(
                [npm, "install", *options, *packages],
                capture_output=True,
                text=True,
                timeout=_INSTALL_TIMEOUT_S,
                check=False,
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
