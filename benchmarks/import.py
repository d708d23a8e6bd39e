"""Measure the time of `import envkit` and the core's memory, each in a fresh process."""

import statistics
import subprocess
import sys

from harness import run, sized

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


def figures_of(times: int) -> dict[str, float]:
    """Return the seconds of the import and the core's memory."""
    measure(IMPORT, 1)  # fill the file cache
    return {"import_s": measure(IMPORT, times), "core_peak_mb": measure(MEMORY, times)}


if __name__ == "__main__":
    run(figures_of, times=sized(7, 1, "processes of each kind"))
