"""Make the certificates of the visual worlds: what policies that do not see solve.

    python scripts/visual/certificates.py [--world NAME]... [--episodes 200] [--workers 2] [--check]

Each cell is a world, a level and a policy. It passes if the upper end of the 95% interval of the
success rate is under 5%; in a world with a stated chance level, if the rate over five times as many
episodes is under that level plus 5 points. The table is docs/environments/visual/certificates.json;
`--world` updates the rows of these worlds only.
"""

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from blind import POLICIES, Cell, solves

from envkit.metrics.intervals import wilson_interval
from envkit_visual.catalogue import WORLDS
from envkit_visual.env import VisualEnv
from envkit_visual.world import LEVELS

TABLE: Final = Path(__file__).parents[2] / "docs/environments/visual/certificates.json"
MARGIN: Final = 0.05
"""Of a rate above chance."""


def passes(name: str, solved: int, episodes: int) -> bool:
    """Return whether a cell passes."""
    chance = WORLDS[name].chance
    if chance:
        return solved / episodes < chance + MARGIN
    return wilson_interval(solved, episodes).high < MARGIN


def certify(name: str, level: int, episodes: int) -> dict[str, Any]:
    """Return the row of a world at a level."""
    cell, counted = Cell(name=name, level=level), dict[str, list[int]]()
    env = cell.env()
    for label, make in POLICIES.items():
        policy = make(cell)
        many = episodes * (5 if WORLDS[name].chance and label != "cut" else 1)
        seeds = cell.seeds("counted", many)
        counted[label] = [sum(solves(env, seed, policy) for seed in seeds), many]
    return {
        "world": name,
        "level": level,
        "chance": WORLDS[name].chance,
        "milliseconds": round(turn_cost(name, level), 2),
        "solved": counted,
        "passed": all(passes(name, *pair) for pair in counted.values()),
    }


def write(rows: list[dict[str, Any]]) -> None:
    """Write the table, a row on each line."""
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(map(json.dumps, rows))
    TABLE.write_text(f"[\n{lines}\n]\n")


def turn_cost(name: str, level: int, episodes: int = 4) -> float:
    """Return the median CPU milliseconds of a turn of the oracle with its PNG."""
    env, costs = VisualEnv(name=name, level=level), list[float]()
    for seed in range(episodes):
        env.reset(options={"task": {"seed": seed}})
        done = False
        while not done and len(costs) < 16 * episodes:
            reply = env.next_actions()
            start = time.thread_time()
            step = env.step(reply)
            step.observation["images"][0].png_bytes()
            costs.append(1000 * (time.thread_time() - start))
            done = step.terminated
    return statistics.median(costs)


def main() -> int:
    """Make the rows that were asked for, and say which do not pass."""
    parser = argparse.ArgumentParser(description="Certify the visual worlds.")
    parser.add_argument("--world", action="append", choices=sorted(WORLDS), default=[])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    names = given.world or list(WORLDS)
    cells = [(name, level, given.episodes) for name in names for level in LEVELS]
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    if TABLE.exists():
        rows = {(row["world"], row["level"]): row for row in json.loads(TABLE.read_text())}
    failed = 0
    with ProcessPoolExecutor(given.workers) as pool:
        for row in pool.map(certify, *zip(*cells, strict=True)):
            rows[row["world"], row["level"]] = row
            failed += not row["passed"]
            rates = " ".join(f"{k} {a}/{b};" for k, (a, b) in row["solved"].items())
            verdict = "" if row["passed"] else "FAILED "
            line = f"{verdict}{row['world']} {row['level']}: {row['milliseconds']} ms; {rates}"
            print(line, flush=True)  # noqa: T201
            if not given.check:  # after each world: all of them take an hour
                whole = [name for name in WORLDS if all((name, one) in rows for one in LEVELS)]
                write([rows[name, one] for name in sorted(whole) for one in LEVELS])
    print(f"{len(cells)} rows, {failed} failed")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
