"""Answer requests of the environment, one JSON object per line.

    python -I harbor_worker --folder FOLDER --driver PID

Each request has an `id`, what to `do`, and arguments; its reply has the same `id` and `ok` or an
`error`. Requests run side by side, those of a session one after another. The worker ends its
sessions and itself when its input closes, which the kernel does when the driver dies. A fork of the
driver may hold the input open, so the worker also looks whether it still is the driver's child.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_MOST_LINE = 64 << 20
_LOOK_SECONDS = 0.5


async def serve(folder: Path, replies: int, driver: int) -> None:
    """Answer requests until the input closes, the driver dies, or the worker is asked to end.

    Args:
        folder: For the sessions' files.
        replies: Descriptor for the replies.
        driver: Process id of the driver.
    """
    from harbor_worker.sessions import Sessions  # imports Harbor

    sessions = Sessions(folder)
    reader = asyncio.StreamReader(limit=_MOST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _send(replies, {"id": 0, "ok": {"harbor": sessions.version}})
    running: set[asyncio.Task[None]] = set()

    async def answer(request: dict[str, Any]) -> None:
        try:
            reply = {"ok": await sessions.answer(request)}
        except Exception as error:  # noqa: BLE001  # every failure is an answer
            reply = {"error": {"type": type(error).__name__, "message": str(error)[:2000]}}
        _send(replies, {"id": request["id"], **reply})

    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    stop = asyncio.create_task(ended.wait())
    watch = asyncio.create_task(_until_orphaned(driver, ended))
    while True:
        line = asyncio.create_task(reader.readline())
        await asyncio.wait((line, stop), return_when=asyncio.FIRST_COMPLETED)
        if stop.done() or not line.result():
            line.cancel()
            break
        task = asyncio.create_task(answer(json.loads(line.result())))
        running.add(task)
        task.add_done_callback(running.discard)
    watch.cancel()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await sessions.close()


async def _until_orphaned(driver: int, ended: asyncio.Event) -> None:
    while os.getppid() == driver:
        await asyncio.sleep(_LOOK_SECONDS)
    ended.set()


def _send(number: int, reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode() + b"\n"
    while data:
        try:
            data = data[os.write(number, data) :]
        except BrokenPipeError:
            return  # the driver is gone, and the input ends too


def main() -> None:
    """Serve on the standard streams; what libraries print goes to standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--driver", type=int, required=True)
    options = parser.parse_args()
    replies = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver's to handle
    try:
        asyncio.run(serve(options.folder, replies, options.driver))
    except ModuleNotFoundError as error:
        message = {"type": "ModuleNotFoundError", "message": str(error)}
        _send(replies, {"id": 0, "error": message})


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    main()
