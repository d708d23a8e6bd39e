"""The sandbox of a grader: a copy of the final files, with nothing of the policy's on its path.

The copy is data. Programs, modules, start-up files and settings come from the machine's `/usr` and
the task's tests alone:

- `/tmp`, `/dev/shm` and the reward folder are new, and `/tests` holds the task's files only.
- HOME is another folder than the policy's. It has links to what is visible in the policy's home
  folder, so that `~/result.txt` is found, but nothing that begins with a dot: no `.bashrc`,
  `.local`, `.config` or `.gitconfig`.
- Variables of the task lose entries of folders that the policy can write, such as in PATH.
- Python takes no module from the current folder that another folder has; see `python_start`.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from envkit.grading import UngradedError
from envkit_terminal.session import HOME, CopyFault, Entry, Limits, TerminalSession

REWARD_FOLDER: Final = "/logs/verifier"
"""Where test scripts in Harbor's format write `reward.txt` or `reward.json`."""
TEST_FOLDER: Final = "/tests"
_OWN_HOME: Final = "/home/grader"
_PYTHON_FOLDER: Final = "/run/python"
_SEARCHED: Final = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PERL5LIB", "PERLLIB", "RUBYLIB", "GEM_PATH"),
        *("NODE_PATH", "CLASSPATH", "LUA_PATH", "MANPATH", "GIT_EXEC_PATH", "GCONV_PATH"),
    )
)
"""Variables with folders that programs search."""
_STARTING: Final = frozenset(
    (
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND", "CDPATH", "HOME"),
        *("LD_PRELOAD", "LD_AUDIT", "PERL5OPT", "RUBYOPT", "NODE_OPTIONS", "XDG_CONFIG_HOME"),
        *("GEM_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_TEMPLATE_DIR", "INPUTRC"),
        *("PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"),
    )
)
"""Variables that make programs load something when they start."""


@dataclass(frozen=True, kw_only=True)
class FinalState:
    """A session's final files, and how to start another sandbox like it."""

    files: Mapping[str, Entry]
    limits: Limits
    folders: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    test_seconds: float
    """Maximum seconds of a test script whose task states none."""

    def fresh(self, tests: Mapping[str, bytes], *, has_own_home: bool) -> TerminalSession:
        """Start a sandbox with a copy of the final files.

        Args:
            tests: The task's test files by absolute path.
            has_own_home: Whether HOME is the grader's. A command that runs the policy's program
                alone, as its user would, keeps the policy's.

        Raises:
            UngradedError: The files cannot be copied.
            EnvFault: The sandbox failed.
        """
        own = (TEST_FOLDER, REWARD_FOLDER, _OWN_HOME)
        kept = {path: one for path, one in self.files.items() if not _is_below(path, own)}
        home = self.environment.get("HOME", HOME)
        session = TerminalSession(
            limits=self.limits,
            folders=[folder for folder in self.folders if not _is_below(folder, own)],
            scratch=[REWARD_FOLDER],
            folder=self.folder,
            read_only={**tests, **_start_files()},
            environment=_environment(self.environment, [HOME, *self.folders]),
            home=_OWN_HOME if has_own_home else home,
        ).start()
        try:
            session.put({**kept, **(_visible(kept, home) if has_own_home else {})})
        except CopyFault as fault:
            session.close()
            raise UngradedError(str(fault)) from fault
        except BaseException:
            session.close()
            raise
        return session


def _visible(files: Mapping[str, Entry], home: str) -> dict[str, Entry]:
    """Return links from the grader's home folder to what is visible in the policy's."""
    start = f"{home.rstrip('/')}/"
    names = {path.removeprefix(start).partition("/")[0] for path in files if path.startswith(start)}
    return {
        f"{_OWN_HOME}/{name}": Entry(link=start + name)
        for name in sorted(names)
        if not name.startswith(".")
    }


def _environment(given: Mapping[str, str], writable: Sequence[str]) -> dict[str, str]:
    """Return a task's variables without what the policy could have put something into."""
    found = {"PYTHONNOUSERSITE": "1"}
    if not _start_links():
        found["PYTHONPATH"] = _PYTHON_FOLDER
    for name, value in given.items():
        if name in _SEARCHED:
            folders = [
                one
                for one in value.split(":")
                if one.startswith("/") and not _is_below(posixpath.normpath(one), writable)
            ]
            if name == "PYTHONPATH" and name in found:
                folders = [_PYTHON_FOLDER, *folders]
            if folders:
                found[name] = ":".join(folders)
        elif name not in _STARTING:
            found[name] = value
    return found


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in folders)


@cache
def _start_links() -> tuple[str, ...]:
    """Return what Debian's Pythons load as `sitecustomize`: links into `/etc`, empty here."""
    links = (
        path for path in Path("/usr/lib").glob("python3*/sitecustomize.py") if path.is_symlink()
    )
    found = (posixpath.join(path.parent, path.readlink()) for path in links)
    return tuple(path for path in map(posixpath.normpath, found) if path.startswith("/etc/"))


@cache
def _start_files() -> dict[str, bytes]:
    text = Path(__file__).with_name("python_start.py").read_bytes()
    paths = _start_links() or (f"{_PYTHON_FOLDER}/sitecustomize.py",)
    return dict.fromkeys(paths, text)
