"""Folders of runs that ended long ago."""

import os
from pathlib import Path
from typing import Final

from fakes.trajectories import example

from envkit.trajectory import save
from envkit.trajectory.storage import FILE_NAME

LONG_AGO: Final = 1_000_000_000


def stored(folder: Path, count: int = 4) -> Path:
    """Write a run that ended long ago; return its file."""
    file = folder / FILE_NAME
    save((example(n) for n in range(count)), file)
    os.utime(file, (LONG_AGO, LONG_AGO))
    return file
