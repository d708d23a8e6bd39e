"""Help for tests of real desktops: what is left on the machine, and playing an episode."""

import os
import time
from pathlib import Path
from typing import Any

from envkit.env import Policy, PolicyContext
from envkit_linux_desktop import LinuxDesktopEnv


def children() -> set[int]:
    """Return the processes that descend from this one, zombies included."""
    from envkit_sandbox.watchdog import processes

    return set(processes(os.getpid())) - {os.getpid()}


def folders(driver: int | None = None) -> list[Path]:
    """Return the session folders that remain; one exists briefly while a session starts.

    Args:
        driver: The process that started the sessions; None is this one.
    """
    pattern = f"envkit-desk-{driver or os.getpid()}-*"
    found = _folders(pattern)
    until = time.monotonic() + 15.0
    while found and time.monotonic() < until:
        time.sleep(0.1)
        found &= _folders(pattern)
    return sorted(found)


def _folders(pattern: str) -> set[Path]:
    return {one for place in ("/dev/shm", "/tmp") for one in Path(place).glob(pattern)}


def row(family: str, *, level: int = 1, draw: int = 0) -> dict[str, Any]:
    """Return a task."""
    return {"id": f"{family}/{level}/{draw}", "family": family, "level": level, "draw": draw}


def play(env: LinuxDesktopEnv, task: dict[str, Any], policy: Policy) -> float:
    """Play an episode and return its last reward."""
    env.reset(seed=0, options={"task": task})
    for turn in range(env.max_turns):
        reply = policy(PolicyContext(env=env, task=task, turn=turn, messages=(), seed=0))
        _, reward, terminated, truncated, _ = env.step(reply)
        if terminated or truncated:
            return float(reward)
    raise AssertionError("the episode did not end")
