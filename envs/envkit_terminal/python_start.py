"""Python's start-up in a grader's sandbox: modules of the current folder never replace others.

A test script runs in the task's folder, where the policy may have left a `pytest.py` or `json.py`.
Python searches that folder first for `-m`, `-c`, a program on standard input and an empty entry of
`PYTHONPATH`. Mounted as `sitecustomize`, this module takes it off the path. What the command asks
for itself, such as `python3 -m solution`, is still found there if no other folder has it.

Standard library only: it runs under the system's Python, without envkit.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

TRUSTED = ("/tests", "/usr")
RUNNERS = ("pytest", "_pytest", "pluggy", "nose", "nose2", "coverage", "hypothesis", "behave")
"""Never taken from the current folder, even if they are not installed."""
ASKING = ("__main__", "runpy")
"""The modules whose imports are the command's own."""


class Front:
    """Removes the current folder once from where Python put it; finds nothing itself."""

    def __init__(self, entry: str, *, is_first: bool) -> None:
        self.entry, self.is_first, self.is_done = entry, is_first, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Remove the entry before the first module is looked for."""
        searched = sys.path[:1] if self.is_first else sys.path
        if not self.is_done and self.entry in searched:
            sys.path.remove(self.entry)
            self.is_done = True
        return None


class Named:
    """Finds in a folder what the command itself imports, after all other finders."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module if the command asks for it; then its own imports are found too."""
        if path is not None or name in RUNNERS or importer() not in ASKING:
            return None
        found = PathFinder.find_spec(name, [self.folder])
        if found is not None and self.folder not in sys.path:
            sys.path.append(self.folder)
        return found


def importer() -> str:
    """Return the name of the module that is importing."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]  # inspect takes 20 ms to load
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib", "_frozen_importlib", __name__)):
            return name
        frame = frame.f_back
    return ""


def protect() -> None:
    """Change the path of this interpreter."""
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        return
    if folder.startswith(TRUSTED) or sys.flags.isolated:
        return
    if "" in os.environ.get("PYTHONPATH", "/").split(":") and folder in sys.path:
        sys.path.remove(folder)
    how = sys.argv[0] if sys.argv else ""
    if how in ("-m", "-c", "", "-"):
        sys.meta_path.insert(0, Front(folder if how == "-m" else "", is_first=how == "-m"))
        sys.meta_path.append(Named(folder))


protect()
