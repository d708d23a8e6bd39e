"""Play the oracle on every desktop family in every dialect and at several screen sizes.

    python scripts/desktop/oracle_sweep.py --seeds 200

Prints the solved tasks by dialect and size, and every unsolved task. Nothing is drawn, because the
oracle reads the state.
"""
# ruff: noqa: T201  # a script prints its figures

import argparse
import sys
import time

from envkit.env import PolicyContext
from envkit.images import Image
from envkit_actions import FAMILIES as DIALECTS
from envkit_desktop import FAMILIES, LEVELS, ComputerUseEnv, DesktopTasks
from envkit_desktop.desktop import Desktop
from envkit_desktop.screen import Screen

SIZES = ("672x448", "800x600", "1280x720", "1344x896", "1920x1080")
_PLAIN = Image.from_bytes(b"never looked at")


def solves(env: ComputerUseEnv, family: str, seed: int) -> str | None:
    """Play one task; return the problem, or None."""
    level = LEVELS[seed % len(LEVELS)]
    task = DesktopTasks(families=[family], level=level, split="test").task(seed)
    env.reset(seed=seed, options={"task": task})
    policy = env.oracle()
    for turn in range(env.max_turns):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=seed)
        try:
            reply = policy(context)
        except Exception as error:  # noqa: BLE001  # one dialect without words must not end the sweep
            return repr(error)
        step = env.step(reply)
        if step.info["parse_error"]:
            return f"turn {turn}: {step.info['parse_error']}"
        if step.terminated or step.truncated:
            end = "turn limit" if step.truncated else "wrong end"
            return None if step.reward == 1.0 else f"{end}; last reply {reply[-160:]!r}"
    return "no end"


def _hide_screen(self: Screen, desk: Desktop) -> Image:
    del self, desk
    return _PLAIN


def main() -> int:
    """Play and print the table; return exit code 1 if a task was not solved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="seeds per family")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--dialects", nargs="+", default=list(DIALECTS), choices=list(DIALECTS))
    parser.add_argument("--families", nargs="+", default=sorted(FAMILIES))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="WIDTHxHEIGHT")
    arguments = parser.parse_args()
    Screen.shoot = _hide_screen
    started, failed = time.monotonic(), 0
    for dialect in arguments.dialects:
        cells: list[str] = []
        for size in arguments.sizes:
            width, height = map(int, size.split("x"))
            env = ComputerUseEnv(action=dialect, width=width, height=height)
            solved = total = 0
            for family in arguments.families:
                for seed in range(arguments.first, arguments.first + arguments.seeds):
                    problem = solves(env, family, seed)
                    total += 1
                    solved += problem is None
                    if problem is not None:
                        print(f"  {dialect} {size} {family} {seed}: {problem}", flush=True)
            failed += total - solved
            cells.append(f"{size} {solved}/{total}")
        print(f"{dialect}: {', '.join(cells)}", flush=True)
    print(f"{failed} not solved; {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
