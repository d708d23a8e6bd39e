"""Agents that are commands: their folder, their process, their output."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind
from envkit_gateway.agents import AgentResult, AgentTask

_SUPERVISOR: Final = Path(__file__).with_name("supervise.py")
_NOT_STARTED: Final = 127
_KEPT: Final = 16_384
"""Bytes of output that the record keeps: the end of it."""
_MOST: Final = 1 << 20
"""Bytes of an answer."""
_STOP_S: Final = 5.0


async def run_command(argv: Sequence[str], task: AgentTask, *, max_disk_mb: int) -> AgentResult:
    """Run an agent's command in its own folder and return how it ended.

    The folder has `task.json`, `prompt.txt` and `image-1.png`, ...; the command leaves its answer
    in `answer.txt` or on standard output, and may leave a number in `reward.txt`. Everything that
    it started is killed when it ends, its folder grows too large, or the caller is cancelled.

    Args:
        argv: The command.
        task: What it gets.
        max_disk_mb: MB that its folder, with its home and its temporary files, may take.

    Raises:
        EnvFault: The command cannot be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="envkit-agent-"))
    try:
        await asyncio.to_thread(_write, folder, task)
        with (folder / "stdout.log").open("wb") as out, (folder / "stderr.log").open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-ISB", str(_SUPERVISOR), str(max_disk_mb << 20), *argv,
                stdin=asyncio.subprocess.PIPE, stdout=out, stderr=err,
                cwd=folder / "work", env=_environ(task, folder), start_new_session=True,
            )  # fmt: skip
            try:
                status = await process.wait()
            except BaseException:
                await _stop(process)
                raise
        return await asyncio.to_thread(_result, folder, status, max_disk_mb)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


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


def _environ(task: AgentTask, folder: Path) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    places = {
        "ENVKIT_TASK_DIR": str(folder),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
    }
    return {**own, **task.environ(), **places}


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


def _result(folder: Path, status: int, max_disk_mb: int) -> AgentResult:
    errors = _tail(folder / "stderr.log")
    if status == _NOT_STARTED and not (folder / "work" / "answer.txt").exists():
        raise EnvFault(
            f"the agent's command did not start: {errors.strip()[-500:]}",
            kind=FaultKind.PERMANENT,
            retryable=False,
        )
    info = {"exit_status": status, "stderr": errors, "stdout": _tail(folder / "stdout.log")}
    answer = _read(folder / "work" / "answer.txt")
    if answer is None and status == 0:
        answer = _read(folder / "stdout.log")
    reward, problem = _reward(folder / "work" / "reward.txt")
    error = problem if status == 0 else f"the agent's command ended with status {status}"
    if status == 128 + signal.SIGXFSZ:
        error = f"the agent's command wrote more than agent.max_disk_mb, {max_disk_mb}"
    return AgentResult(answer=answer, reward=reward, error=error, info=info)


def _reward(path: Path) -> tuple[float | None, str | None]:
    text = _read(path)
    if text is None:
        return None, None
    try:
        return float(text), None
    except ValueError:
        return None, f"reward.txt must hold a number, got {text[:80]!r}"


def _read(path: Path) -> str | None:
    """Return a file's text; None if there is no regular file."""
    if not path.is_file() or path.is_symlink():
        return None
    with path.open("rb") as file:
        return file.read(_MOST).decode("utf-8", "replace").strip()


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _KEPT))
        return file.read(_KEPT).decode("utf-8", "replace")
