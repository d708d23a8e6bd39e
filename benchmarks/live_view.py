"""What the live view costs: CPU seconds of a rollout with it, and of the same one without.

Both run the command in a process of its own, its standard error on a pseudo terminal of 120
columns, one of them with --quiet. The pairs are interleaved. The episodes are scripted; their
number is chosen so that a rollout takes many refreshes of the view. Imports and the start of the
process are in both figures and are small beside the rollout.

    python benchmarks/live_view.py
    python benchmarks/live_view.py --env canary-v0 --episodes 2000 --pairs 5 --json
"""

import argparse
import fcntl
import json
import os
import pty
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from pathlib import Path
from typing import Final

_ROWS, _COLUMNS = 40, 120
_TARGET_PERCENT: Final = 2.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="canary-v0")
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    drawn = 0
    for _ in range(options.pairs):
        quiet, _ = _cpu_seconds(options.env, options.episodes, options.concurrency, is_quiet=True)
        live, drawn = _cpu_seconds(
            options.env, options.episodes, options.concurrency, is_quiet=False
        )
        pairs.append((quiet, live))
    costs = [100 * (live - quiet) / quiet for quiet, live in pairs]
    figures = {
        "quiet_cpu_seconds": [round(quiet, 3) for quiet, _ in pairs],
        "live_cpu_seconds": [round(live, 3) for _, live in pairs],
        "cost_percent": [round(cost, 2) for cost in costs],
        "cost_percent_median": round(statistics.median(costs), 2),
        "bytes_drawn": drawn,
        "target_percent": _TARGET_PERCENT,
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for quiet, live in pairs:
        print(f"quiet {quiet:.2f} s of CPU, live {live:.2f} s: {100 * (live / quiet - 1):+.2f}%")
    print(f"median {figures['cost_percent_median']:+.2f}% (target below {_TARGET_PERCENT}%)")


def _cpu_seconds(env: str, episodes: int, concurrency: int, *, is_quiet: bool) -> tuple[float, int]:
    """Run a rollout on a pseudo terminal; return its CPU seconds and the bytes that it drew."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    drawn = [0]
    reader = threading.Thread(target=_read_all, args=(master, drawn))
    reader.start()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-c", "from envkit.cli import main; main()"),
            *("rollout", env, "--policy", "oracle", "-n", str(episodes)),
            *("--concurrency", str(concurrency), "--out", str(Path(folder) / "run")),
            *(["--quiet"] if is_quiet else []),
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.close(slave)
    reader.join()
    os.close(master)
    spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return spent, drawn[0]


def _read_all(master: int, drawn: list[int]) -> None:
    while True:
        try:
            data = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            return
        if not data:
            return
        drawn[0] += len(data)


if __name__ == "__main__":
    main()
