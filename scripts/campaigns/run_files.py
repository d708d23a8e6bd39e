"""Change rows of real runs at random, and give each to everything that reads a run file.

A line may be refused or read, but no reader may raise anything else or take seconds.
`tests/core/trajectory/test_hostile_rows.py` runs part of it.

    python scripts/campaigns/run_files.py --rows 100000
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.hostile_rows import mutated, read_everywhere, real_rows  # noqa: E402


def main() -> int:
    """Print how many rows were readable; return 1 if a reader failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, counts, longest = random.Random(options.seed), Counter[bool](), 0.0
    faults: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = real_rows(Path(folder))
        for _ in range(options.rows):
            file, row = rng.choice(rows)
            line = mutated(row, rng)
            started = time.process_time()
            try:
                counts[read_everywhere(file, line)] += 1
            except Exception as error:  # noqa: BLE001  # what the campaign looks for
                place = traceback.extract_tb(error.__traceback__)[-1]
                faults.setdefault(f"{place.filename}:{place.lineno}: {error!r:.200}", line)
            longest = max(longest, time.process_time() - started)
    for fault, line in faults.items():
        sys.stdout.write(f"{fault}\n{line[:2000]!r}\n")
    sys.stdout.write(
        f"{options.rows:,} rows: {counts[True]:,} readable, {counts[False]:,} refused, "
        f"at most {longest:.2f} CPU s for one\n"
    )
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
