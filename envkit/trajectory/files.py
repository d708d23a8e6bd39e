"""Writing that leaves a file whole or as it was."""

import contextlib
import json
import os
import secrets
from collections.abc import Generator, Iterable
from pathlib import Path

from envkit.errors import StorageError


@contextlib.contextmanager
def storage_errors(what: str) -> Generator[None]:
    """Turn an OSError inside the block into a StorageError that starts with `what`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{what}: {error.strerror or error}") from error


def replace_file(target: Path, content: bytes | Iterable[bytes], *, durable: bool = False) -> None:
    """Write a file under another name and move it into place, so that it is never half there.

    Raises:
        StorageError: It cannot be written; nothing is left of it.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with storage_errors(f"cannot write {target}"), temporary.open("xb") as stream:
            stream.writelines((content,) if isinstance(content, bytes) else content)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def append_whole(descriptor: int, line: bytes) -> None:
    """Write all of the line or none of it."""
    start = os.fstat(descriptor).st_size
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        os.ftruncate(descriptor, start)
        raise


def repair_tail(path: Path) -> int:
    """Cut an unfinished last line off and return its length; end a whole one with a newline."""
    if not path.is_file():
        return 0
    data_end = path.stat().st_size
    with path.open("r+b") as stream:
        start = _last_line_start(stream.fileno(), data_end)
        stream.seek(start)
        tail = stream.read()
        if not tail:
            return 0
        try:
            json.loads(tail)
        except ValueError:
            stream.truncate(start)
            return len(tail)
        stream.write(b"\n")
        return 0


def _last_line_start(descriptor: int, end: int) -> int:
    """Return where the text behind the last newline begins."""
    block = 1 << 16
    while end > 0:
        start = max(0, end - block)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
