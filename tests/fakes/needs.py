"""What tests need beyond `make setup-dev`: how it is detected, and the command that adds it.

A test states a need with its mark, or with `require` where the test itself decides or where the
module cannot be imported without it. `fakes.skips` prints the commands after a run.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from subprocess import run
from typing import Final

import pytest
from fakes.skips import ADD_IT_WITH

from envkit.errors import EnvkitError
from envkit_browser.driver.binary import find_browser
from envkit_linux_desktop.requirements import check_desktop
from envkit_terminal.session import check_programs


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that not every machine has."""

    name: str
    command: str
    """Adds it, from the root of the checkout."""
    detect: Callable[[], bool]

    @cached_property
    def is_met(self) -> bool:
        return self.detect()

    @property
    def reason(self) -> str:
        return f"{self.name}{ADD_IT_WITH}{self.command}"

    @property
    def mark(self) -> pytest.MarkDecorator:
        return pytest.mark.skipif(not self.is_met, reason=self.reason)

    def require(self) -> None:
        """Skip the test that calls this, or the module that is being imported."""
        if not self.is_met:
            pytest.skip(self.reason, allow_module_level=True)


def packages(*modules: str) -> Need:
    """Python packages that a machine with only part of `make setup-dev` may lack."""
    return Need(
        name=f"the Python module {modules[0]}" if len(modules) == 1 else ", ".join(modules),
        command="make setup-dev",
        detect=lambda: all(find_spec(module) is not None for module in modules),
    )


def _passes(check: Callable[[], object]) -> Callable[[], bool]:
    def detect() -> bool:
        try:
            check()
        except EnvkitError:
            return False
        return True

    return detect


FIRST_PROCESS: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Starts a program as process 1 of its own namespace, as a container does."""


def _can_be_first() -> bool:
    ended = run([*FIRST_PROCESS, "true"], capture_output=True, check=False)
    return ended.returncode == 0


CONTAINED: Final = Need(
    name="a namespace of processes",
    command="nothing; run the tests as root, in a container with --privileged",
    detect=lambda: which("unshare") is not None and _can_be_first(),
)
TORCH: Final = packages("torch")
BUBBLEWRAP: Final = Need(
    name="bubblewrap",
    command="make desktop-deps",
    detect=_passes(check_programs),
)
DESKTOP: Final = Need(
    name="the Linux desktop",
    command="make desktop-deps",
    detect=_passes(check_desktop),
)
BROWSER: Final = Need(
    name="the headless browser",
    command="make browser-deps",
    detect=_passes(find_browser),
)
CHROMIUM: Final = Need(
    name="the headless browser or playwright",
    command="make setup-dev browser-deps",
    detect=lambda: BROWSER.is_met and packages("playwright").is_met,
)
DEBIAN_CHROMIUM: Final = Need(
    name="the program chromium",
    command="make desktop-deps",
    detect=lambda: which("chromium") is not None,
)
VERCEL_AI: Final = Need(
    name="Vercel's ai from npm",
    command="make contract-clients CLIENT=vercel-ai, on a machine with npm",
    detect=lambda: Path(os.environ.get("ENVKIT_AGENT_PROGRAMS", "."), "../ai").resolve().is_dir(),
)
BROWSER_USE: Final = Need(
    name="browser-use",
    command="make contract-clients",
    detect=lambda: "ENVKIT_BROWSER_USE_PYTHON" in os.environ,
)
SLIME_SERVER: Final = Need(
    name="a real SGLang server for slime",
    command="python scripts/contracts/slime/real_server.py",
    detect=lambda: {"ENVKIT_SGLANG_URL", "ENVKIT_SGLANG_MODEL"} <= set(os.environ),
)
REASONING_GYM: Final = Need(
    name="reasoning-gym",
    command="make puzzles",
    detect=lambda: find_spec("reasoning_gym") is not None,
)
MUJOCO: Final = Need(
    name="MuJoCo",
    command='.venv/bin/pip install "gymnasium[mujoco]"',
    detect=lambda: find_spec("mujoco") is not None,
)
BOX2D: Final = Need(
    name="Box2D, which needs swig and a C++ compiler",
    command='.venv/bin/pip install swig "gymnasium[box2d]"',
    detect=lambda: find_spec("Box2D") is not None,
)
