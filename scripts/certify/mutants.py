"""Print the recall of `envkit certify` on planted defects, and its false positives.

PYTHONPATH=tests python scripts/certify/mutants.py [--json] [NAME...]
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from fakes.mutants import MUTANTS, ROWS
from fakes.sweep import sweep

from envkit_certify.worker import LINES

BUILT_IN = ("canary-v0", "geo3k-v0", "search-v0", "computer-use-v0", "refine-v0")
UNCHANGED = ("fakes.mutants:Geo3k", "fakes.mutants:Desktop")
"""Base of the mutants, if it is not the environment itself."""


def main() -> None:
    """Certify the mutants and the built-in environments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants; all by default")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    names = options.names or list(MUTANTS)
    found = sweep([f"fakes.mutants:{name}" for name in names], episodes=options.episodes)
    built_in: dict[str, list[str]] = (
        {} if options.names else sweep((*BUILT_IN, *UNCHANGED), episodes=options.episodes)
    )
    caught: dict[str, list[str]] = {
        target.partition(":")[2]: lines for target, lines in found.items()
    }
    if options.json:
        _say(json.dumps({"mutants": caught, "built_in": built_in}, indent=2))
        return
    _say("| defect | mutants | found | by |\n| --- | --- | --- | --- |")
    for row in ROWS:
        mine = {f"{row.name}_{base}" for base in row.bases} & set(caught)
        if mine:
            by = [line for line in LINES if any(line in caught[name] for name in mine)]
            hits = sum(bool(caught[name]) for name in mine)
            _say(f"| {row.name} | {len(mine)} | {hits} | {', '.join(by) or '-'} |")
    hits = sum(bool(lines) for lines in caught.values())
    _say(f"\nrecall {hits / len(caught):.3f} ({hits} of {len(caught)} mutants)")
    _say(f"missed: {', '.join(n for n, lines in caught.items() if not lines) or 'none'}")
    wrong = {target: lines for target, lines in built_in.items() if lines}
    _say(f"false positives: {len(wrong)} of {len(built_in)} environments without a defect")
    for target, lines in wrong.items():
        _say(f"{target}: {', '.join(lines)}")
    _say(f"{time.monotonic() - start:.0f} seconds")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
