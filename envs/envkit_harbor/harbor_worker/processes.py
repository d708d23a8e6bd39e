"""Child processes of the worker: run one with a deadline, keep bounded output, end its tree."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

KILL_SECONDS = 1.0
"""Seconds between the request to end and the kill."""
DRAIN_SECONDS = 0.3
"""Seconds for the rest of the output, after the process; a detached child may hold it open."""
_LOOK_SECONDS = 0.02
_ROUNDS = 50


@dataclass(frozen=True, kw_only=True)
class Done:
    """A process that ended."""

    code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


class Kept:
    """The head and the tail of an output."""

    def __init__(self, most: int) -> None:
        self._most, self._head, self._tail, self._cut = most // 2, b"", b"", 0

    def add(self, data: bytes) -> None:
        """Append output."""
        room = max(0, self._most - len(self._head))
        self._head, self._tail = self._head + data[:room], self._tail + data[room:]
        if (over := len(self._tail) - self._most) > 0:
            self._tail, self._cut = self._tail[over:], self._cut + over

    @property
    def value(self) -> bytes:
        """What is kept, with a note where bytes are missing."""
        note = b"\n[... %d bytes left out ...]\n" % self._cut if self._cut else b""
        return self._head + note + self._tail


async def run(
    command: Sequence[str],
    *,
    seconds: float | None,
    stdin: bytes = b"",
    most: int = 1 << 20,
) -> Done:
    """Run a program that waits for its child, and end the child's tree if the deadline passes.

    Args:
        command: The command line.
        seconds: The deadline; None waits for its end. A cancelled wait ends the tree too.
        stdin: What it reads.
        most: Bytes kept of each output; the middle is left out.
    """
    outputs = Kept(most), Kept(most)
    with ExitStack() as stack:
        # Pipes of our own: asyncio waits for its own until every holder of them has ended.
        source = _input(stdin, stack)
        pipes = [os.pipe() for _ in outputs]
        closing = [stack.enter_context(os.fdopen(given, "wb", buffering=0)) for _, given in pipes]
        reading = [
            await _start_reading(taken, kept)
            for (taken, _), kept in zip(pipes, outputs, strict=True)
        ]
        for transport, _ in reading:
            stack.callback(transport.close)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=source, stdout=closing[0], stderr=closing[1], start_new_session=True
        )
        for file in closing:
            file.close()
        timed_out = await _wait(process, seconds)
        await asyncio.wait([done for _, done in reading], timeout=DRAIN_SECONDS)
    code = process.returncode if process.returncode is not None else -signal.SIGKILL
    found = (kept.value for kept in outputs)
    return Done(code=code, stdout=next(found), stderr=next(found), timed_out=timed_out)


async def _wait(process: asyncio.subprocess.Process, seconds: float | None) -> bool:
    """Wait for a process, and return whether its deadline passed."""
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        await _end(process)
        return True
    except BaseException:
        await asyncio.shield(_end(process))
        raise
    return False


async def _end(process: asyncio.subprocess.Process) -> None:
    await end_tree(process.pid)
    await process.wait()


def _input(data: bytes, stack: ExitStack) -> int:
    if not data:
        return asyncio.subprocess.DEVNULL
    number = os.memfd_create("input")
    stack.callback(os.close, number)
    with os.fdopen(number, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(number, 0, os.SEEK_SET)
    return number


class _Reading(asyncio.Protocol):
    """Keeps what a pipe delivers until its end."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Keep it."""
        self._kept.add(data)

    def connection_lost(self, exc: Exception | None) -> None:  # asyncio's contract
        """Note the end."""
        if not self.ended.done():
            self.ended.set_result(None)


async def _start_reading(
    number: int, kept: Kept
) -> tuple[asyncio.ReadTransport, asyncio.Future[None]]:
    file = os.fdopen(number, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    transport, reading = await loop.connect_read_pipe(lambda: _Reading(kept), file)
    return transport, reading.ended


async def end_tree(process: int) -> None:
    """Ask everything below a process to end, then kill it; the process ends with its child."""
    _signal(descendants(process) - {process}, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(KILL_SECONDS):
            while descendants(process) - {process}:
                await asyncio.sleep(_LOOK_SECONDS)
    for _ in range(_ROUNDS):
        if not (left := descendants(process) - {process}):
            return
        _signal(left, signal.SIGKILL)
        await asyncio.sleep(_LOOK_SECONDS)
    _signal({process}, signal.SIGKILL)


def _signal(processes: set[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def descendants(process: int) -> set[int]:
    """Return a process and everything below it that runs."""
    found: list[int] = [process] if _runs(process) else []
    for one in found:
        with suppress(OSError, ValueError):
            for task in os.listdir(f"/proc/{one}/task"):
                listed = Path(f"/proc/{one}/task/{task}/children").read_text().split()
                found.extend(number for number in map(int, listed) if _runs(number))
    return set(found)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
