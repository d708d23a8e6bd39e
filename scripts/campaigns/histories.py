"""Run random histories for a number of operations and count the checks.

Appends, rewrites, summaries, forks, aborts, resumes, stores and loads hit the ledger, the record,
`fork_before` and the trajectory files. Each family of forks is checked at its end: every sampled
token has one owner or was dropped, every sequence equals what the engine received, and every
certificate holds after a load. `tests/core/rollout/test_rewriter.py` runs part of it.

    python scripts/campaigns/histories.py --operations 1000000
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.history_campaign import OPERATIONS, run_family  # noqa: E402


def main() -> None:
    """Run the campaign and print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first family")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    seed, shown = options.seed, 0.0
    started, busy = time.monotonic(), time.process_time()
    while (done := sum(counts[name] for name in OPERATIONS)) < options.operations:
        if time.monotonic() - started > options.seconds:
            break
        run_family(seed, counts)
        seed += 1
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            sys.stdout.write(f"{done:,} operations, {time.process_time() - busy:.0f} CPU s\n")
            sys.stdout.flush()
    figures = {
        "operations": done,
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(time.process_time() - busy, 1),
        **dict(sorted(counts.items())),
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
