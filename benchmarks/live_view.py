"""Measure the live view's cost: CPU seconds of a rollout with and without it.

Both run the command in its own process with standard error on a pseudo terminal of 120 columns, one
of them with --quiet. The pairs are interleaved; the episodes are scripted. On a busy machine, CPU
seconds of equal work differ by several percent, so the process also measures the share of its CPU
time spent drawing.
"""

import fcntl
import json
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from pathlib import Path
from typing import Any, Final

from harness import run, sized

_ROWS, _COLUMNS = 40, 120
_TARGET_PERCENT: Final = 2.0


_MEASURED: Final = """
import json, sys, time
from envkit.cli.progress import LiveBar
drawing, draw = [0, 0.0], LiveBar.draw
def measured(bar):
    start = time.thread_time()
    draw(bar)
    drawing[0] += 1
    drawing[1] += time.thread_time() - start
LiveBar.draw = measured
from envkit.cli import main
started = time.process_time()
try:
    main(sys.argv[2:])
finally:
    used = time.process_time() - started
    figures = {"calls": drawing[0], "drawing_seconds": drawing[1], "seconds": used}
    open(sys.argv[1], "w").write(json.dumps(figures))
"""


def measure(env: str, episodes: int, concurrency: int, pairs: int) -> dict[str, Any]:
    """Return the CPU time with and without the view, and the share spent on drawing."""
    arguments = [
        *("rollout", env, "--policy", "oracle", "-n", str(episodes)),
        *("--concurrency", str(concurrency)),
    ]
    played = [(_run([*arguments, "--quiet"]), _run(arguments)) for _ in range(pairs)]
    differences = [100 * (live["seconds"] / quiet["seconds"] - 1) for quiet, live in played]
    shares = [100 * live["drawing_seconds"] / live["seconds"] for _, live in played]
    return {
        "quiet_cpu_seconds": [round(quiet["seconds"], 2) for quiet, _ in played],
        "live_cpu_seconds": [round(live["seconds"], 2) for _, live in played],
        "difference_percent_median": round(statistics.median(differences), 2),
        "drawing_percent_median": round(statistics.median(shares), 3),
        "bytes_drawn": played[-1][1]["bytes_drawn"],
        "target_percent": _TARGET_PERCENT,
    }


def _run(arguments: list[str]) -> dict[str, float]:
    """Play a rollout whose standard error is a pseudo terminal; return its CPU seconds."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    drawn = [0]
    reader = threading.Thread(target=_read_all, args=(master, drawn))
    reader.start()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        subprocess.run(
            [
                *(sys.executable, "-c", _MEASURED, str(file)),
                *(*arguments, "--out", str(Path(folder) / "run")),
            ],
            stdout=subprocess.DEVNULL,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
            check=True,
        )
        figures = json.loads(file.read_text())
    os.close(slave)
    reader.join()
    os.close(master)
    return {**figures, "bytes_drawn": drawn[0]}


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
    run(
        measure,
        env="canary-v0",
        episodes=sized(300, 4),
        concurrency=sized(16, 2),
        pairs=sized(5, 1),
    )
