"""Print the recall of `envkit certify` on planted defects, and its false positives.

PYTHONPATH=tests python scripts/certify/mutants.py [--planted] [--json] [NAME...]

With --planted, the defects are those of `fakes.planted`, which were written without knowledge of
the certification. One counts as found only by a line that its base passes.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from fakes.mutants import MUTANTS, ROWS
from fakes.planted import BASES, PLANTED
from fakes.sweep import sweep

from envkit_certify.worker import LINES

BUILT_IN = ("canary-v0", "geo3k-v0", "search-v0", "computer-use-v0", "refine-v0")
UNCHANGED = ("fakes.mutants:Geo3k", "fakes.mutants:Desktop")
"""Base of the mutants, if it is not the environment itself."""


def main() -> None:
    """Certify the mutants and the built-in environments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants; all by default")
    parser.add_argument("--planted", action="store_true", help="defects of fakes.planted")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    caught, clean = _sweep(options.names, episodes=options.episodes, planted=options.planted)
    if options.json:
        _say(json.dumps({"mutants": caught, "built_in": clean}, indent=2))
        return
    _say("| defect | mutants | found | by |\n| --- | --- | --- | --- |")
    rows = {name: {name} for name in PLANTED}
    if not options.planted:
        rows = {row.name: {f"{row.name}_{base}" for base in row.bases} for row in ROWS}
    for row, members in rows.items():
        mine = members & set(caught)
        if mine:
            by = [line for line in LINES if any(line in caught[name] for name in mine)]
            hits = sum(bool(caught[name]) for name in mine)
            _say(f"| {row} | {len(mine)} | {hits} | {', '.join(by) or '-'} |")
    hits = sum(bool(lines) for lines in caught.values())
    _say(f"\nrecall {hits / len(caught):.3f} ({hits} of {len(caught)} mutants)")
    _say(f"missed: {', '.join(n for n, lines in caught.items() if not lines) or 'none'}")
    wrong = {target: lines for target, lines in clean.items() if lines}
    _say(f"false positives: {len(wrong)} of {len(clean)} environments without a defect")
    for target, lines in wrong.items():
        _say(f"{target}: {', '.join(lines)}")
    _say(f"{time.monotonic() - start:.0f} seconds")


def _sweep(
    names: list[str], *, episodes: int, planted: bool
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the failed lines of the defects by name, and of environments without a defect."""
    module, known = ("planted", PLANTED) if planted else ("mutants", MUTANTS)
    targets = {name: f"fakes.{module}:{name}" for name in names or known}
    found = sweep(list(targets.values()), episodes=episodes)
    caught = {name: found[target] for name, target in targets.items()}
    if not planted:
        return caught, {} if names else sweep((*BUILT_IN, *UNCHANGED), episodes=episodes)
    wanted = {
        base.__name__: f"{base.__module__}:{base.__name__}"
        for base in BASES
        if any(PLANTED[name].__mro__[1] is base for name in caught)
    }
    lines = sweep(list(wanted.values()), episodes=episodes)
    clean = {name: lines[target] for name, target in wanted.items()}
    own = {
        name: [line for line in failed if line not in clean[PLANTED[name].__mro__[1].__name__]]
        for name, failed in caught.items()
    }
    return own, clean


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
