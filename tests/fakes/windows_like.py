"""A process that lacks what Python lacks on Windows, and whose files behave as they do there.

`become` hides the modules and names of the standard library that only POSIX systems have, and
refuses what Windows refuses: to replace or delete an open file, and to open a folder. It cannot
show anything else about Windows.
"""

import errno
import os
import signal
import sys
import types
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

# Modules and names that Python's documentation marks "Availability: Unix" or "not Windows".
_MODULES = (
    *("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "curses", "readline"),
    "_posixshmem",
)
_OS = """
chown chroot confstr ctermid copy_file_range eventfd fchdir fchmod fchown fdatasync fork forkpty
fpathconf fstatvfs get_blocking getegid geteuid getgid getgroups getloadavg getpgid getpgrp
getpriority getresuid getsid getuid getxattr initgroups killpg lchown lockf login_tty major makedev
memfd_create minor mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_fadvise posix_spawn
posix_spawnp pread preadv pwrite pwritev register_at_fork sched_getaffinity sched_yield sendfile
set_blocking setgid setgroups setpgid setpriority setsid setuid setxattr splice statvfs sync sysconf
tcgetpgrp ttyname uname wait wait3 wait4 waitid WEXITSTATUS WIFEXITED WIFSIGNALED WTERMSIG WNOHANG
O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_LARGEFILE O_NDELAY O_NOATIME O_NOCTTY O_NOFOLLOW
O_NONBLOCK O_PATH O_RSYNC O_SYNC O_TMPFILE
"""
_SIGNALS = """
SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGHUP SIGIO SIGIOT SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR
SIGQUIT SIGRTMAX SIGRTMIN SIGSTKFLT SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1
SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ alarm getitimer pause pthread_kill pthread_sigmask
setitimer sigpending sigtimedwait sigwait sigwaitinfo siginterrupt
"""
_LOOK_ONCE = """
asyncio concurrent.futures.thread ctypes importlib.metadata multiprocessing socket subprocess
tempfile webbrowser zipfile aiohttp.web gymnasium jsonschema numpy PIL.Image rich.console rich.live
rich.progress tiktoken typer
"""
"""These look at the platform or at POSIX names once, when they are imported."""
_O_BINARY = 1 << 30
"""A flag that Linux ignores."""


def become() -> None:
    """Change this process; call it before the first import of envkit."""
    assert "envkit" not in sys.modules
    for name in _LOOK_ONCE.split():
        import_module(name)
    import fcntl

    sys.modules["msvcrt"] = _msvcrt(fcntl)
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    for module, names in ((os, _OS), (signal, _SIGNALS)):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    os.O_BINARY = _O_BINARY  # type: ignore[attr-defined]
    sys.platform = "win32"
    warnings.filterwarnings("error", category=EncodingWarning, module="envkit")
    sys.addaudithook(_refuse)


def _msvcrt(fcntl: Any) -> types.ModuleType:
    """Return a module whose locks exclude other descriptors, of a byte that no file reaches."""
    found: Any = types.ModuleType("msvcrt")
    found.LK_UNLCK, found.LK_LOCK, found.LK_NBLCK = 0, 1, 2

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert count == 1
        assert os.lseek(descriptor, 0, os.SEEK_CUR) >= 1 << 40
        how = fcntl.LOCK_UN if mode == found.LK_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error

    found.locking = locking
    return found


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("os.rename", "os.remove"):
        for path in arguments[: 1 + (event == "os.rename")]:
            if os.fspath(path) in _open_files():
                raise PermissionError(errno.EACCES, "it is open in this process", path)
    elif event == "open" and arguments[1] is None and isinstance(arguments[0], str | os.PathLike):
        path, _, flags = arguments
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a folder cannot be opened", path)
        caller = sys._getframe(1).f_globals["__name__"]
        assert flags & _O_BINARY or not caller.startswith("envkit"), f"{path} is opened as text"


def _open_files() -> set[str]:
    found = set[str]()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(entry))
        except OSError:
            continue
    return found
