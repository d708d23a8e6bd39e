"""Atomic file writes, locked appends, and the cache folder."""

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Container, Generator, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from envkit import open_files
from envkit.closing import Closing
from envkit.errors import BusyError, ConfigurationError, MissingDependencyError, StorageError
from envkit.writer_notes import WriterNote

_HOME: Final = re.compile(r"((?:[a-z]+:)?)~[\w.-]*(?=[/\\]|$)", re.ASCII)
CACHE_VARIABLE: Final = "ENVKIT_CACHE"
_LOG: Final = logging.getLogger(__name__)
_CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
"""What fsync says on network and user-space file systems that do not have it (fsync(2))."""
_PASSING: Final = (errno.ESTALE, errno.EIO)
"""What a network file system says while its server restarts or another one takes over."""
_BLOCK: Final = 1 << 16
_ATTEMPTS: Final = 100
_APPENDING: Final = os.O_RDWR | os.O_APPEND | open_files.OPENS_AS_BYTES
_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def storage_errors(what: str) -> Generator[None]:
    """Turn an OSError inside the block into a StorageError that starts with `what`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{what}: {error.strerror or error}") from error


def cache_dir() -> Path:
    """Return the folder for everything envkit builds once; it may not exist yet.

    `ENVKIT_CACHE` names it; without it, it is "envkit" in the platform's cache folder.

    Raises:
        ConfigurationError: That folder is in the user's home, and the user has none.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named and not named.startswith("~"):
        return Path(named)
    try:
        if named:
            return Path(named).expanduser()
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "envkit"
        is_windows = sys.platform == "win32"
        variable = "LOCALAPPDATA" if is_windows else "XDG_CACHE_HOME"
        given = os.environ.get(variable)
        if given:
            return Path(given) / "envkit"
        parts = ("AppData", "Local") if is_windows else (".cache",)
        return Path.home().joinpath(*parts, "envkit")
    except RuntimeError as error:  # no HOME, and no entry in the list of users, as in containers
        raise ConfigurationError(
            f"envkit keeps what it builds once in the user's home folder, and this user has none: "
            f"{error} Set {CACHE_VARIABLE} to a folder, or set HOME"
        ) from error


def expanded(text: str) -> str:
    """Return a path with the user's home for a leading `~` or `~name`, as a shell expands it.

    A scheme may precede it, as in `tantivy:~/index`. Any other text is returned unchanged.

    Raises:
        ConfigurationError: This user has no home.
    """
    found = _HOME.match(text)
    if found is None:
        return text
    path = os.path.expanduser(text[found.end(1) :])
    # `expanduser` returns the path unchanged if it knows no home; `~name` of an unknown user may be
    # a real name.
    if path == "~" or path.startswith("~/"):
        raise ConfigurationError(f"this user has no home folder: set HOME, got the path {text!r}")
    return found[1] + path


def read_data(path: Path, what: str) -> object:
    """Return the data of a JSON file, or of a YAML file if its name has another ending.

    Args:
        path: The file.
        what: What it is, such as "the tool set", for the messages.

    Raises:
        ConfigurationError: It cannot be read, or is not valid.
        MissingDependencyError: It is YAML, and PyYAML is not installed.
    """
    load: Callable[[str], object] = json.loads
    wrong: tuple[type[Exception], ...] = (OSError, ValueError, RecursionError)
    kind = "JSON"
    if path.suffix.lower() != ".json":
        try:
            yaml: Any = import_module("yaml")
        except ImportError as error:
            raise MissingDependencyError.for_extra(f"{what} in YAML", "PyYAML", "yaml") from error
        load, kind, wrong = yaml.safe_load, "YAML", (*wrong, yaml.YAMLError)
    try:
        return load(path.read_text(encoding="utf-8"))
    except wrong as error:
        raise ConfigurationError(f"cannot read {what} {str(path)!r} as {kind}: {error}") from error


def replace_file(target: Path, content: bytes | Iterable[bytes], *, durable: bool = False) -> None:
    """Write a file atomically: under a temporary name, then moved into place.

    Raises:
        StorageError: It cannot be written; no partial file is left.
    """
    with storage_errors(f"cannot write {target}"):
        if not isinstance(content, bytes):
            _replace(target, content, durable=durable)
            return
        try:
            _replace(target, (content,), durable=durable)
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            _replace(target, (content,), durable=durable)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of processes that were killed while they replaced a file there.

    A file that a process still writes is locked, and stays.
    """
    for path in folder.glob(".*.tmp"):
        if not _TEMPORARY.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            if not open_files.CAN_MOVE_OPEN:
                path.unlink()
                continue
            with open_files.open_regular(path, follow=False) as stream:
                open_files.lock(stream.fileno())
                path.unlink()


def _temporary_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")


def _replace(target: Path, content: Iterable[bytes], *, durable: bool) -> None:
    temporary = _temporary_of(target)
    try:
        with temporary.open("xb") as stream:
            with contextlib.suppress(OSError):  # a file system without locks
                open_files.lock(stream.fileno(), waits=True)
            if not os.fstat(stream.fileno()).st_nlink:  # `remove_leftovers` came first
                _replace(target, content, durable=durable)
                return
            stream.writelines(content)
            stream.flush()
            if durable:
                _sync(stream.fileno())
            if open_files.CAN_MOVE_OPEN:  # so the lock keeps the file until then
                temporary.replace(target)
        if not open_files.CAN_MOVE_OPEN:
            temporary.replace(target)
        if durable:
            _sync_folder(target.parent)
    finally:
        with contextlib.suppress(OSError):  # a folder without access has no such file either
            temporary.unlink(missing_ok=True)


class LineFile(Closing):
    """An append-only file of lines, each written completely or not at all.

    An advisory lock excludes a second writer. It is released when its process ends for any reason;
    a `WriterNote` replaces it on a file system without locks. Threads may share the writer.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        """Open the file; create it if it is missing.

        Args:
            path: The file; its folder must exist.
            durable: Wait until each line is on disk (fsync).

        Raises:
            StorageError: It cannot be written, or another writer has it open.
        """
        self.path: Final = path
        self._durable = durable
        self._lock = threading.Lock()
        self.is_new = False
        """Whether this writer created the file."""
        self.is_lost = False
        """Whether another program deleted, replaced or changed the file."""
        self._descriptor: int | None = None
        self._note: WriterNote | None = None
        _open_files.add(self)
        try:
            with storage_errors(f"cannot open {path} for writing"):
                self._descriptor = self._open_locked()
                if durable:
                    _sync_folder(path.parent)
                self._end = os.fstat(self._descriptor).st_size
        except BaseException:
            self.close()
            raise
        self._is_torn = False

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._end

    def clear(self) -> None:
        """Drop all lines."""
        with self._lock, storage_errors(f"cannot empty {self.path}"):
            os.ftruncate(self._open(), 0)
            self._end = 0

    def repair(self) -> int:
        """Remove an incomplete end left by an interrupted writer; return its length.

        An incomplete end is a last line that is not a JSON object, or zeros from a power cut. If a
        complete last line lacks only its newline, the newline is added.
        """
        with self._lock, storage_errors(f"cannot repair {self.path}"):
            descriptor = self._open()
            whole, lacks_newline = _whole_end(descriptor, self._end)
            cut = self._end - whole
            if cut:
                os.ftruncate(descriptor, whole)
            self._end = whole
            if lacks_newline:
                self._append(descriptor, b"\n")
            return cut

    def keep_lines(self, wanted: Container[int]) -> None:
        """Drop every line whose number, counted from 1, is not kept.

        The file is replaced atomically, and the lock moves to the new one.

        Raises:
            StorageError: It cannot be replaced; it is unchanged.
        """
        temporary = _temporary_of(self.path)
        with self._lock, storage_errors(f"cannot rewrite {self.path}"):
            old = self._open()
            new = os.open(temporary, _APPENDING | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                # Before it takes the old file's place: at no moment is the path's file unlocked.
                self._claim(new)
                with self.path.open("rb") as source, os.fdopen(os.dup(new), "wb") as target:
                    target.writelines(
                        line for number, line in enumerate(source, start=1) if number in wanted
                    )
                    target.flush()
                    _sync(new)
                if not open_files.CAN_MOVE_OPEN:
                    open_files.close(new)
                    open_files.close(old)
                    self._descriptor = None
                temporary.replace(self.path)
                _sync_folder(self.path.parent)
            except BaseException:
                if self._descriptor is not None:
                    open_files.close(new)
                temporary.unlink(missing_ok=True)
                raise
            if self._descriptor is None:
                new = self._open_locked()
            else:
                open_files.close(old)
            self._descriptor, self._end = new, os.fstat(new).st_size

    def check(self) -> None:
        """Check that a line could be appended now.

        Raises:
            StorageError: The file was closed, deleted, replaced or changed by another program.
        """
        with self._lock, storage_errors(f"cannot check {self.path}"):
            self._steadily(self._check)

    def append(self, line: bytes) -> None:
        """Append a line completely in one call, or not at all.

        Raises:
            StorageError: The disk is full, or the file was closed, deleted, replaced or changed by
                another program. Its contents are kept.
        """

        def write(descriptor: int) -> None:
            self._check(descriptor)
            self._append(descriptor, line)

        with self._lock:
            self._open()
            with storage_errors(f"cannot write to {self.path}; its contents are kept"):
                self._steadily(write)

    def remove(self) -> None:
        """Delete the file while its lock is held; a file that replaced it stays.

        Raises:
            StorageError: It cannot be deleted.
        """
        with self._lock, storage_errors(f"cannot remove {self.path}"):
            descriptor = self._open()
            if not _is_named(descriptor, self.path):
                return
            if not open_files.CAN_MOVE_OPEN:
                open_files.close(descriptor)
                self._descriptor = None
            self.path.unlink()

    def close(self) -> None:
        """Close the file and release its lock; safe to call twice."""
        with self._lock:
            if self._descriptor is not None:
                open_files.close(self._descriptor)
                self._descriptor = None
            if self._note is not None:
                self._note.close()
                self._note = None

    def forget(self) -> None:
        """Close the file in a forked child, and leave its lock to the parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._note = None

    def _open(self) -> int:
        if self._descriptor is None:
            raise StorageError(f"the writer of {self.path} is closed")
        return self._descriptor

    def _steadily(self, call: Callable[[int], None]) -> None:
        """Call with the descriptor, and once more with a new one if the file system failed."""
        try:
            call(self._open())
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            self._reopen()
            call(self._open())

    def _reopen(self) -> None:
        """Open the path again; the server may have forgotten the old descriptor and its lock."""
        old, self._descriptor = self._open(), None
        with contextlib.suppress(OSError):
            os.close(old)
        self._descriptor = os.open(self.path, _APPENDING)
        self._claim(self._descriptor)

    def _open_locked(self) -> int:
        """Open the file that the path names while the lock is held."""
        for _ in range(_ATTEMPTS):
            descriptor, self.is_new = _open_or_create(self.path)
            try:
                self._claim(descriptor)
                if _is_named(descriptor, self.path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its writer removed or replaced it before this one had the lock
        raise StorageError(
            f"{self.path} was replaced {_ATTEMPTS} times while it was being opened, and a run has "
            "only one writer; stop the other programs, or choose another directory"
        )

    def _claim(self, descriptor: int) -> None:
        try:
            open_files.lock(descriptor)
        except open_files.BUSY as error:
            raise BusyError(
                f"{self.path} is being written by another writer, and a run has only one; wait "
                "for it to finish, stop it, or choose another directory"
            ) from error
        except OSError as error:
            if self._note is None:  # a file system without locks, such as some network mounts
                _LOG.warning(
                    "the file system of %s has no locks (%s): a note next to the file excludes "
                    "other writers",
                    self.path,
                    error.strerror,
                )
                self._note = WriterNote(self.path)

    def _check(self, descriptor: int) -> None:
        opened = os.fstat(descriptor)
        if not _is_named(descriptor, self.path):
            self.is_lost = True
            how = "replaced" if self.path.exists() else "deleted"
            raise StorageError(
                f"{self.path} was {how} while it was being written, so further output would be lost"
            )
        # Our own partial write, which could not be removed when it failed.
        if self._is_torn and opened.st_size > self._end:
            os.ftruncate(descriptor, self._end)
        elif opened.st_size != self._end:
            self.is_lost = True
            raise StorageError(
                f"{self.path} has {opened.st_size} bytes, but its writer left {self._end}: another "
                "program changed it while it was being written"
            )
        self._is_torn = False

    def _append(self, descriptor: int, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:  # one call, unless the write is partial
                rest = rest[os.write(descriptor, rest) :]
            if self._durable:
                _sync(descriptor)
        except BaseException:
            self._is_torn = True
            with contextlib.suppress(OSError):  # otherwise the next call removes it
                os.ftruncate(descriptor, self._end)
            raise
        self._end += len(line)


def _forget() -> None:
    """Close inherited files."""
    # A child that outlives its parent would keep the lock.
    for file in list(_open_files):
        file.forget()


_open_files: Final[weakref.WeakSet[LineFile]] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _open_or_create(path: Path) -> tuple[int, bool]:
    """Open a file for appending; return whether this call created it."""
    # In a folder from somebody else, a link may name any file of the user.
    if path.is_symlink():
        raise StorageError(f"{path} is a symbolic link, and a run is only written where it is")
    flags = _APPENDING | open_files.NO_FOLLOW | open_files.NO_WAIT | os.O_CREAT
    try:
        return os.open(path, flags | os.O_EXCL, 0o666), True
    except FileExistsError:
        descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StorageError(f"{path} is not a regular file")
    return descriptor, False


def _is_named(descriptor: int, path: Path) -> bool:
    """Return whether the path still names the open file."""
    opened = os.fstat(descriptor)
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _whole_end(descriptor: int, end: int) -> tuple[int, bool]:
    """Return where the last complete line ends, and whether its newline is missing."""
    while end:
        start = _line_start(descriptor, end)
        line = _read(descriptor, start, end)
        if line.endswith(b"\n") and b"\0" not in line:
            return end, False
        body = line.rstrip(b"\0")
        if body and b"\n" not in body and _is_object(body):
            return start + len(body), True
        end = start
    return 0, False


def _line_start(descriptor: int, end: int) -> int:
    """Return the start of the line that ends at `end`."""
    end -= 1  # its own newline
    while end > 0:
        start = max(0, end - _BLOCK)
        found = _read(descriptor, start, end).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _read(descriptor: int, start: int, end: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)  # appending ignores the position
    return os.read(descriptor, end - start)


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _sync(descriptor: int) -> None:
    """Wait until a file or a folder is on disk, where the file system can."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _sync_folder(folder: Path) -> None:
    """Wait until the folder's entries are on disk, where the system can."""
    if not open_files.CAN_MOVE_OPEN:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)
