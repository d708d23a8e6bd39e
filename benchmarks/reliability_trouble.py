"""Runs on slow, full and read-only disks, with a clock that goes back, and resumed by two at once.

No process is killed without a warning here, so no finished episode may be played again: the
environment's own log has each once.
"""

import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import SIGTERM
from typing import Any, Final

from reliability_kills import PATIENCE_S, Ended, KilledRun

_SLOW_DISK: Final = """
import os, random, time
for name in ("fsync", "fdatasync", "replace"):
    def slow(*args, real=getattr(os, name), **keywords):
        time.sleep(0.4 * random.random())
        return real(*args, **keywords)
    setattr(os, name, slow)
"""
_CLOCK_BACK: Final = """
import time
started, wall = time.monotonic(), time.time
def stepped():
    return wall() - {days} * 86400 - 3600 * (time.monotonic() - started > {after})
time.time, time.time_ns = stepped, lambda: int(stepped() * 1e9)
"""


@dataclass(kw_only=True)
class Troubled(Ended):
    """Results of the runs with one kind of trouble."""

    played_again: int = 0
    """Finished episodes that a later process played once more."""
    tracebacks: int = 0
    """Runs with a traceback on standard error."""
    wrong_exits: int = 0
    """Processes that should have refused, or stopped with an error, and did not."""
    refusals: Counter[str] = field(default_factory=Counter[str])
    """Exit codes of processes that could not write, or that came second."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        return super().to_json() | {"refusals": dict(self.refusals)}


class TroubledRun(KilledRun):
    """One run that meets one kind of trouble and is completed afterwards."""

    _killed_resumes = 0.0

    def slow_disk(self, ended: Troubled) -> None:
        """Let each flush and rename take up to 0.4 s, and end the run by a signal."""
        self._end(self._begin(_SLOW_DISK), (SIGTERM,), ended)

    def clock_back(self, ended: Troubled) -> None:
        """Set the clock back by an hour during the run, and by a day before the resume."""
        self._end(self._begin(_CLOCK_BACK.format(days=0, after=2.0)), (SIGTERM,), ended)
        back = _CLOCK_BACK.format(days=1, after=1.0)
        self._end(self._start(*self._resumed, prelude=back), (), ended)

    def full_disk(self, ended: Troubled) -> None:
        """Fill the disk during the run, then enlarge it."""
        self._out.mkdir()
        _mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(self._out))
        self._refuse(self._begin(), ended)
        _mount("-o", "remount,size=64m", str(self._out))

    def read_only_disk(self, ended: Troubled) -> None:
        """Resume on a disk that cannot be written, then make it writable."""
        self._out.mkdir()
        _mount("-t", "tmpfs", "tmpfs", str(self._out))
        self._end(self._begin(), (SIGTERM,), ended)
        _mount("-o", "remount,ro", str(self._out))
        self._refuse(self._start(*self._resumed), ended)
        _mount("-o", "remount,rw", str(self._out))

    def two_resume(self, ended: Troubled) -> None:
        """Resume a run from two processes at once; exactly one may play."""
        self._end(self._begin(), (SIGTERM,), ended)
        both = [self._start(*self._resumed) for _ in range(2)]
        codes = sorted(process.wait(PATIENCE_S) for process in both)
        ended.wrong_exits += codes[0] != 0 or codes[1] == 0
        ended.refusals[str(codes[1])] += 1

    def meet(self, kind: str, ended: Troubled) -> None:
        """Play, meet the trouble, and resume until the run is complete."""
        ended.runs += 1
        try:
            getattr(self, kind)(ended)
            self._resume(ended)
            log = self._log.read_text().split()
            ended.played_again += len(log) - len(set(log))
            errors = (self._folder / "stderr.txt").read_text(errors="replace")
            ended.tracebacks += "Traceback" in errors
        finally:
            subprocess.run(["umount", str(self._out)], check=False, capture_output=True)

    def _refuse(self, process: "subprocess.Popen[bytes]", ended: Troubled) -> None:
        """Wait for a process that cannot write."""
        code = process.wait(PATIENCE_S)
        ended.refusals[str(code)] += 1
        ended.wrong_exits += code == 0


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def troubled_runs(kind: str, *, runs: int, episodes: int, model: str) -> dict[str, Any]:
    """Play this many runs that meet one kind of trouble; return what was lost.

    Args:
        kind: A method of `TroubledRun`. Full and read-only disks are mounted, which needs root.
        runs: Number of runs.
        episodes: Episodes of each run.
        model: Folder of a tokenizer.
    """
    ended, rng, started = Troubled(), Random(kind), time.monotonic()
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            TroubledRun(Path(folder), episodes=episodes, model=model, rng=rng).meet(kind, ended)
    return ended.to_json() | {"seconds": time.monotonic() - started}
