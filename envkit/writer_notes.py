"""Exclude a second writer on a file system without locks.

Some network mounts have no `flock`. There a writer creates a note next to its file, which names the
process, and removes the note when it closes. Creating a file that must not exist yet is atomic on
those mounts too.
"""

import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

from envkit.closing import Closing
from envkit.errors import BusyError

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES: Final = Path("/proc/self/ns/pid")


class WriterNote(Closing):
    """A note that this process writes a file, until it is closed.

    Notes are numbered: number n + 1 follows n only if the process of n died. Only its own process
    removes a note. Of several processes that follow the same dead one, one creates the next note.
    """

    def __init__(self, path: Path) -> None:
        """Create the note.

        Args:
            path: The file to write.

        Raises:
            BusyError: Another process may be writing the file.
            OSError: The note cannot be written.
        """
        self._note: Path | None = None
        number = 1
        while (note := _note(path, number)).exists():
            if not _is_dead(note):
                raise _busy(path, note)
            number += 1
        try:
            with note.open("x") as stream:
                self._note = note
                json.dump(_own_process(), stream)
        except FileExistsError as error:
            raise _busy(path, note) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the note."""
        note, self._note = self._note, None
        if note is not None:
            with contextlib.suppress(OSError):
                note.unlink()


def _note(path: Path, number: int) -> Path:
    return path.with_name(f".{path.name}.writer-{number}")


def _own_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": _host(), "pid": pid, "started": _started(pid)}


def _host() -> list[str]:
    """Return what identifies the processes that a process id may name."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = _BOOT.read_text().strip()
        namespace = _PROCESSES.readlink().name
    return [socket.gethostname(), boot, namespace]


def _started(pid: int) -> str:
    """Return when a process started, in the system's own unit; empty if that is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _is_dead(note: Path) -> bool:
    """Whether the process of a note certainly ended; unknown for one on another machine."""
    try:
        written = json.loads(note.read_text())
        host, pid, started = written["host"], int(written["pid"]), written["started"]
    except FileNotFoundError:
        return False  # removed just now: the next attempt succeeds
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if host != _host() or sys.platform == "win32":  # there, signal 0 of `os.kill` is Ctrl-C
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return started != _started(pid)


def _busy(path: Path, note: Path) -> BusyError:
    owner = "an unknown process"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        written = json.loads(note.read_text())
        owner = f"process {written['pid']} on {written['host'][0]}"
    return BusyError(
        f"{path} is being written by {owner}, and a run has only one writer; wait for it to "
        "finish, stop it, or choose another directory. This file system has no locks: if that "
        f"process has ended, remove {note}"
    )
