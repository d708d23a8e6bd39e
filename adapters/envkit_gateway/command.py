"""Agents that are commands: their folder, their process, their output, their grade."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from envkit.errors import EnvFault, FaultKind
from envkit.grading import UngradedError
from envkit.threads.pool import WorkerPool
from envkit_gateway.agents import AgentResult, AgentSettings, AgentTask, argv_of

_SUPERVISOR: Final = Path(__file__).with_name("supervise.py")
_NOT_EXECUTABLE, _NOT_STARTED = 126, 127
_KILLED, _TOO_LARGE = 128 + 9, 128 + 25  # SIGKILL and SIGXFSZ, which Windows lacks
_FAILED: Final = {
    _NOT_EXECUTABLE: "cannot be executed",
    _NOT_STARTED: "did not start",
    _KILLED: "was killed",
    _TOO_LARGE: "wrote more than agent.max_disk_mb",
}
_KEPT: Final = 16_384
"""Bytes at the end of the output that the record keeps."""
_MOST: Final = 1 << 20
"""The most bytes that an answer may have."""
_STOP_S: Final = 5.0


class Grade(NamedTuple):
    """The verdict of the grading command."""

    reward: float
    info: Mapping[str, Any]


class _Ended(NamedTuple):
    status: int
    stdout: str
    stderr: str
    said: str
    """The start of its standard output."""

    def info(self) -> dict[str, Any]:
        return {"exit_status": self.status, "stderr": self.stderr, "stdout": self.stdout}


@asynccontextmanager
async def agent_folder(pool: WorkerPool) -> AsyncGenerator[Path]:
    """Provide a folder for one agent's command; a thread of the pool removes it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="envkit-agent-"))
    try:
        yield folder
    finally:
        await pool.run(lambda: _remove(folder))


@asynccontextmanager
async def untouched_folder(pool: WorkerPool, task: AgentTask) -> AsyncGenerator[Path]:
    """Provide the folder of an agent that did nothing."""
    async with agent_folder(pool) as folder:
        await pool.run(lambda: _write(folder, task))
        yield folder


async def run_command(
    settings: AgentSettings, task: AgentTask, folder: Path, pool: WorkerPool, *, key: str = ""
) -> AgentResult:
    """Run an agent's command in a folder and return how it ended.

    The command starts in `work`, which has `task.json`, `prompt.txt`, `instructions.txt` (the
    system prompt, the prompt and the names of the images) and `image-1.png`, ... It writes its
    answer to `answer.txt` or standard output, and may write a number to `reward.txt`. Everything
    that it started is killed when it ends, when its folder grows too large, or when the caller is
    cancelled.

    Args:
        settings: The command. Its standard output is the answer, without `answer.txt` and unless
            it takes steps.
        task: The agent's input.
        folder: An empty folder.
        pool: Threads for its files.
        key: The only line of its standard input, which is empty without it. Nothing else has it.

    Raises:
        EnvFault: No process can be started.
    """
    await pool.run(lambda: _write(folder, task))
    variables = {
        **task.environ(),
        "ENVKIT_TASK_DIR": str(folder),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
    }
    most, argv = settings.max_disk_mb, settings.argv() or ()
    ended = await _supervised(argv, folder, variables, logs=folder, max_disk_mb=most, key=key)
    return await pool.run(lambda: _result(folder, ended, most, says_answer=not settings.steps))


async def grade_command(
    settings: AgentSettings, task: Mapping[str, Any], folder: Path, pool: WorkerPool
) -> Grade:
    """Run a command that grades an agent's folder, once the agent is gone.

    The command gets its own folder, `ENVKIT_GRADE_DIR`, which the agent never saw, with the
    environment's whole task as `task.json`. It also holds the command's home and temporary files,
    so none of the agent's settings apply.

    Args:
        settings: The command that grades, and how large the agent's folder may be.
        task: The environment's task.
        folder: The agent's folder.
        pool: Threads for its files.

    Raises:
        UngradedError: The command cannot be started or was killed, or left no number where it
            should; or the agent removed its folder.
        EnvFault: No process can be started.
    """
    own = Path(tempfile.mkdtemp(prefix="envkit-grade-"))
    try:
        if not os.access(folder / "work", os.X_OK):
            raise UngradedError("agent.grade has no folder to run in: the agent removed it")
        text = json.dumps(task, ensure_ascii=False, default=str)
        await pool.run(lambda: (own / "task.json").write_text(text, "utf-8"))
        variables = {name: str(own) for name in ("ENVKIT_GRADE_DIR", "HOME", "TMPDIR")}
        argv, most = argv_of("agent.grade", settings.grade or ()), settings.max_disk_mb
        ended = await _supervised(argv, folder, variables, logs=own, max_disk_mb=most)
        return await pool.run(lambda: _grade(own, ended))
    finally:
        await pool.run(lambda: _remove(own))


async def _supervised(
    argv: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    *,
    logs: Path,
    max_disk_mb: int,
    key: str = "",
) -> "_Ended":
    """Run a command to its end and kill what it leaves behind, even if this is cancelled."""
    # A proxy cannot reach the gateway on loopback.
    inherited = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    # Their paths may name anything later, so they are read through these handles.
    with (logs / "stdout.log").open("w+b") as out, (logs / "stderr.log").open("w+b") as err:
        try:
            given = _input_of(key)
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-ISB", str(_SUPERVISOR), str(max_disk_mb << 20), str(given),
                    *argv, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=err, pass_fds=[given],
                    cwd=folder / "work", env={**inherited, **variables}, start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(given)
        except OSError as error:
            raise EnvFault(
                f"a command cannot run in the agent's folder: {error}",
                kind=FaultKind.PERMANENT,
                retryable=False,
            ) from error
        try:
            status = await process.wait()
        except BaseException:
            await _stop(process)
            raise
        finally:
            # The supervisor was killed, perhaps by the command, before it could clean up.
            if process.returncode is None or process.returncode < 0:
                await asyncio.to_thread(_kill_orphans, logs)  # it looks at every process
        return _Ended(status, _end_of(out), _end_of(err), _start_of(out))


def _input_of(key: str) -> int:
    """Return an open file with a key as its only line; it is in no folder."""
    if not key:
        return os.open(os.devnull, os.O_RDONLY)
    source, sink = os.pipe()
    os.write(sink, f"{key}\n".encode())  # a pipe holds it until somebody reads
    os.close(sink)
    return source


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Have the supervisor kill the command; kill it too if it does not answer."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.wait([waiting], timeout=_STOP_S)
    if not waiting.done():
        with suppress(ProcessLookupError):
            process.kill()
        await waiting


def _kill_orphans(folder: Path) -> None:
    """Kill what a dead supervisor left: processes in the folder, or with it in their variables."""
    # A command may kill or stop its supervisor. Its own child dies with it, later ones do not.
    mark = os.fsencode(folder)
    for _ in range(20):
        found = [one for one in Path("/proc").glob("[0-9]*") if _is_in(one, mark)]
        if not found:
            return
        for process in found:
            with suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)
        time.sleep(0.005)


def _is_in(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes() or mark in os.fsencode(
            (process / "cwd").readlink()
        )
    except OSError:  # it is gone, or somebody else's
        return False


def _remove(folder: Path) -> None:
    """Remove a folder of any depth."""
    # `shutil.rmtree` has neither the stack nor the descriptors for a very deep one.
    subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def _write(folder: Path, task: AgentTask) -> None:
    for name in ("work", "home", "tmp"):
        (folder / name).mkdir()
    images = [f"image-{n}.png" for n in range(1, len(task.images) + 1)]
    for name, image in zip(images, task.images, strict=True):
        (folder / "work" / name).write_bytes(image.png_bytes())
    system = [str(one["content"]) for one in task.messages if one["role"] == "system"]
    about: dict[str, Any] = {
        "prompt": task.prompt,
        "system": "\n\n".join(system),
        "images": images,
        "tools": [tool.to_json() for tool in task.tools],
        "base_url": task.base_url,
        "url": task.url,
    }
    text = json.dumps(about, ensure_ascii=False, indent=1)
    (folder / "work" / "task.json").write_text(text, encoding="utf-8")
    (folder / "work" / "prompt.txt").write_text(task.prompt, encoding="utf-8")
    seen = f"The images of the task: {', '.join(images)}" if images else ""
    whole = "\n\n".join(filter(None, (about["system"], task.prompt, seen)))
    (folder / "work" / "instructions.txt").write_text(whole, encoding="utf-8")


def _result(folder: Path, ended: "_Ended", max_disk_mb: int, *, says_answer: bool) -> AgentResult:
    status = ended.status
    answer = _read(folder / "work" / "answer.txt")
    # What a failed command printed is a message, not an answer.
    if answer is None and status == 0 and says_answer:
        answer = ended.said
    reward: float | None = None
    ungraded: str | None = None
    try:
        reward = _reward(folder / "work" / "reward.txt")
    except UngradedError as failure:  # the policy may have written the file
        ungraded = f"the agent left no reward: {failure}"
    error = None if status == 0 else _failure(folder, ended)
    if status == _TOO_LARGE:
        error = f"the agent's command wrote more than agent.max_disk_mb, {max_disk_mb}"
    return AgentResult(
        answer=answer, reward=reward, error=error, ungraded=ungraded, info=ended.info()
    )


def _failure(folder: Path, ended: "_Ended") -> str:
    """Say how a command failed, with its last line, which is the same in every folder."""
    lines = ended.stderr.replace(str(folder / "work"), ".").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"the agent's command ended with status {ended.status}{': ' if last else ''}{last[:300]}"


def _grade(folder: Path, ended: "_Ended") -> Grade:
    if ended.status in _FAILED:
        raise UngradedError(
            f"agent.grade {_FAILED[ended.status]} (status {ended.status}), which is no verdict on "
            f"the agent: {ended.stderr.strip()[-500:]}"
        )
    try:
        reward = _reward(folder / "reward.txt")
    except UngradedError as error:
        raise UngradedError(f"agent.grade: {error}") from error
    return Grade(float(ended.status == 0) if reward is None else reward, ended.info())


def _reward(path: Path) -> float | None:
    """Return the number of a file; None if there is none.

    Raises:
        UngradedError: The file holds something else, so the reward is not known.
    """
    text = _read(path)
    if text is None:
        return None
    try:
        reward = float(text)
    except ValueError:
        reward = math.nan
    if not math.isfinite(reward):
        raise UngradedError(f"reward.txt must hold a finite number, got {text[:80]!r}")
    return reward


def _read(path: Path) -> str | None:
    """Return a file's text; None if there is no regular file."""
    # The command may put a pipe there, which is never read to its end, or a link to any file.
    if not path.is_file() or path.is_symlink():
        return None
    with path.open("rb") as file:
        return file.read(_MOST).decode("utf-8", "replace").strip()


def _start_of(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(_MOST).decode("utf-8", "replace").strip()


def _end_of(file: BinaryIO) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _KEPT))
    return file.read(_KEPT).decode("utf-8", "replace")
