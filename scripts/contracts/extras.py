"""Resolve every extra under constraints.txt, from the metadata on the package index alone.

    python scripts/contracts/extras.py

A result is kept outside the checkout, by a hash of what determines it. Without a package index the
check is skipped with a message. Exit status: 0 resolved or skipped, 1 an extra cannot be resolved.
"""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from environment import cache_root, say

ROOT: Final = Path(__file__).resolve().parents[2]
PYPROJECT: Final = ROOT / "pyproject.toml"
CONSTRAINTS: Final = ROOT / "constraints.txt"
PYTHONS: Final = {"skyrl": "3.12"}
"""Extras that need a newer Python than the oldest one that envkit runs on."""
UNREACHABLE: Final = "Failed to fetch"


def main() -> int:
    """Check all extras and return the exit status."""
    digest = hashlib.sha256()
    for path in (PYPROJECT, CONSTRAINTS, Path(__file__)):
        digest.update(path.read_bytes() + b"\0")
    kept = cache_root() / "extras" / digest.hexdigest()[:12]
    if kept.exists():
        say("extras", f"resolved before: {kept}")
        return 0
    problems: list[str] = []
    extras = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    for extra in extras.keys() - within(extras, "dev"):
        problem = problem_of(extra)
        if UNREACHABLE in problem:
            say("extras", f"SKIPPED, no package index can be reached: {problem[:300]}")
            return 0
        if problem:
            problems.append(f"{extra}: {problem}")
    for problem in problems:
        say("extras", problem)
    if problems:
        return 1
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    say("extras", f"all {len(extras)} extras resolve under {CONSTRAINTS.name}")
    return 0


def within(extras: dict[str, list[str]], name: str) -> set[str]:
    """Return the extras that one includes; they resolve if it does."""
    named = re.findall(r"envkit-rl\[(.+?)\]", " ".join(extras[name]))
    inner = {one for names in named for one in names.split(",")}
    return inner.union(*(within(extras, one) for one in inner))


def problem_of(extra: str) -> str:
    """Return why an extra cannot be resolved; empty if it can.

    A constraint may be an upper bound, for packages of which some extras need older versions. The
    extra `dev` must still get exactly the listed versions.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet"),
            *("--no-header", "--no-annotate", "--python-version", PYTHONS.get(extra, "3.11")),
            *("--constraint", str(CONSTRAINTS), "--extra", extra, str(PYPROJECT)),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    if done.returncode:
        return done.stderr.strip()
    found = versions(done.stdout)
    listed = versions(CONSTRAINTS.read_text("utf-8")) if extra == "dev" else found
    other = [f"{name} {one}" for name, one in found.items() if listed.get(name, one) != one]
    return f"{CONSTRAINTS.name} is not what it gets: {', '.join(other)}" if other else ""


def versions(text: str) -> dict[str, str]:
    """Return the version of each package in lines such as `name==1.0` and `name<=1.0`."""
    rows = re.findall(r"^([\w.-]+)[=<]=([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in rows}


if __name__ == "__main__":
    sys.exit(main())
