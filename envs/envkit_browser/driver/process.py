"""The browser as a process: started in its own group, with its own profile.

`kill` removes both. It also runs when the object is collected and when the interpreter exits. If
this process is killed, a guard (a shell waiting on a pipe) does the same.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import ClassVar, Final

from envkit.errors import MissingDependencyError, RefusedError
from envkit_browser.driver.binary import FONTS, LIBRARIES, libraries_line
from envkit_browser.driver.trouble import BrowserFault, Trouble

SANDBOX_VARIABLE: Final = "ENVKIT_BROWSER_SANDBOX"
"""Environment variable that runs Chromium without its own sandbox if it is "off"."""
_NO_SANDBOX: Final = "No usable sandbox"
_NO_LIBRARY: Final = "error while loading shared libraries"
"""What ld.so says (glibc)."""
PROFILE_PREFIX: Final = "envkit-browser-"
_GUARD: Final = 'read -r _; kill -KILL "-$1" 2>/dev/null; sleep 0.2; rm -rf -- "$2"'
_POLL_S: Final = 0.005
_LOG: Final = "browser.log"
_LAUNCH: Final = 'exec "$@" 3<&0 4>&0 </dev/null'
"""The browser reads commands from descriptor 3 and answers on 4: a shell sets them up, since code
run by `subprocess` between fork and exec is not thread-safe."""
_SMALL_SHARED_MEMORY: Final = 512 * 2**20


class BrowserProcess:
    """A running browser and its profile folder."""

    has_answered: ClassVar[bool] = False
    """Whether a browser has started in this process."""

    def __init__(self, binary: Path, flags: tuple[str, ...]) -> None:
        """Start it.

        Args:
            binary: Path from `find_browser`.
            flags: Flags in addition to those for the process itself.

        Raises:
            BrowserFault: The operating system refuses.
            RefusedError: The system is not Linux, or `ENVKIT_BROWSER_SANDBOX` has another value
                than "off".
        """
        if sys.platform != "linux":
            raise RefusedError(
                f"browsers need Linux, got {sys.platform}; use a Linux container or a virtual "
                "machine"
            )
        self.binary = binary
        is_sandboxed = _is_sandboxed()
        self.profile = Path(tempfile.mkdtemp(prefix=PROFILE_PREFIX))
        own = _process_flags(self.profile, is_sandboxed=is_sandboxed)
        command = [str(binary), *own, *flags, "about:blank"]
        ours, theirs = socket.socketpair()
        try:
            with theirs, (self.profile / _LOG).open("wb") as log:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _LAUNCH, "browser", *command],
                    stdin=theirs.fileno(),
                    stdout=log,
                    stderr=log,
                    env=_environment(self.profile, binary),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            shutil.rmtree(self.profile, ignore_errors=True)
            raise BrowserFault(
                f"the browser {str(binary)!r} cannot be started: {error}",
                trouble=Trouble.START_FAILED,
            ) from error
        self.pid = self._process.pid
        self._ends = [ours]
        self._finalizer = weakref.finalize(
            self,
            _end,
            self._process,
            _start_guard(self.pid, self.profile),
            self.profile,
            os.getpid(),
            self._ends,
        )

    @property
    def is_alive(self) -> bool:
        """Whether the main process is alive, running or stopped."""
        return self._process.poll() is None

    def take_end(self) -> socket.socket:
        """Hand over our end of the DevTools socket; can be called once."""
        return self._ends.pop()

    def start_error(self) -> BrowserFault | MissingDependencyError:
        """Return why a start failed, with the browser's last output.

        It is a `MissingDependencyError`, which ends a run before its first episode, if every start
        fails in this way and none in this process succeeded.
        """
        words = self.last_words()
        if _NO_SANDBOX in words and not BrowserProcess.has_answered:
            return RefusedError(
                f"Chromium cannot start its sandbox: user {os.geteuid()} may not create user "
                "namespaces, which a container's seccomp profile or a setting of the machine "
                f"forbids. Fix it with: export {SANDBOX_VARIABLE}=off, after which a page that "
                "breaks out of Chromium has this user's rights; or allow user namespaces, in a "
                "container with docker run --security-opt seccomp=unconfined, on Ubuntu with "
                "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
            )
        if _NO_LIBRARY in words and not BrowserProcess.has_answered:
            return MissingDependencyError(
                f"the browser {str(self.binary)!r} needs a system library, which is not "
                f"installed: {words}. Install it with: {libraries_line()}"
            )
        state = "does not answer in time" if self.is_alive else "ended at once"
        return BrowserFault(
            f"the browser {state}; its last output: {words!r}", trouble=Trouble.START_FAILED
        )

    def memory(self) -> int:
        """Return the resident bytes of all its processes; each counts shared pages."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.pid:
                    total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        return total

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, if it still exists."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the group and remove the profile; takes some milliseconds. Safe to call twice."""
        self._finalizer()

    def last_words(self) -> str:
        """Return the end of the browser's output; empty after `kill`."""
        try:
            return (self.profile / _LOG).read_text(errors="replace")[-600:].strip()
        except OSError:
            return ""


def _start_guard(group: int, profile: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "guard", str(group), str(profile)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(
    process: subprocess.Popen[bytes],
    guard: subprocess.Popen[bytes],
    profile: Path,
    owner: int,
    ends: list[socket.socket],
) -> None:
    for end in ends:
        end.close()
    if os.getpid() != owner:  # a fork that exits must not kill its parent's browser
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # The browser's children are ours now if this process is the first one of a container, which
    # inherits orphans. No child of anyone else is in this group.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)
    for _ in range(20):  # dying processes of the group may still write
        shutil.rmtree(profile, ignore_errors=True)
        if not profile.exists():
            break
        time.sleep(_POLL_S)
    guard.kill()
    guard.wait()
    if guard.stdin is not None:
        guard.stdin.close()


def _process_flags(profile: Path, *, is_sandboxed: bool) -> list[str]:
    flags = [f"--user-data-dir={profile}", "--headless", "--remote-debugging-pipe"]
    if not is_sandboxed:
        flags.append("--no-sandbox")
    try:
        shared = os.statvfs("/dev/shm")
        is_small = shared.f_bavail * shared.f_frsize < _SMALL_SHARED_MEMORY
    except OSError:
        is_small = True
    if is_small:  # containers have 64 MB there, too little for a few pages
        flags.append("--disable-dev-shm-usage")
    return flags


def _is_sandboxed() -> bool:
    """Return whether Chromium shall run in its own sandbox, which root cannot start."""
    chosen = os.environ.get(SANDBOX_VARIABLE, "")
    if chosen not in ("", "off"):
        raise RefusedError(
            f"{SANDBOX_VARIABLE} must be 'off' or unset, got {chosen!r}. "
            f"Fix it with: unset {SANDBOX_VARIABLE}"
        )
    return not chosen and os.geteuid() != 0


def _environment(profile: Path, binary: Path) -> dict[str, str]:
    """Return environment variables that keep all files in the profile and set no proxy."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    inside = ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
    libraries = binary.with_name(LIBRARIES)
    if (libraries / "libnss3.so").is_file():
        kept["LD_LIBRARY_PATH"] = str(libraries)
        kept.setdefault("FONTCONFIG_FILE", str(binary.with_name(FONTS)))
    return {**kept, **dict.fromkeys(inside, str(profile)), "LANG": "C.UTF-8", "TZ": "UTC"}
