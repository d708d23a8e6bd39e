"""Measure the time of `import envkit` and the core's memory, each in a fresh process."""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

IMPORT = (
    "import time; start = time.perf_counter(); import envkit; print(time.perf_counter() - start)"
)
MEMORY = (
    "import resource, envkit, envkit.rollout, envkit.trajectory, envkit.metrics; "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
)


def measure(code: str, times: int) -> float:
    """Return the median of a program's printed number over fresh processes."""
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(times)
    ]
    return statistics.median(runs)


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=7, help="processes of each kind")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    measure(IMPORT, 1)  # fill the file cache
    figures = {
        "import_s": measure(IMPORT, options.times),
        "core_peak_mb": measure(MEMORY, options.times),
    }
    print(
        f"import: `import envkit` takes {figures['import_s']:.3f} s; "
        f"the core's peak memory is {figures['core_peak_mb']:.0f} MB"
    )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
