"""Starting and stopping a real SGLang server on a CPU, in a process group of its own."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import environment
from environment import PROGRESS_S, tail

START_TIMEOUT_S = 12 * 60
STOP_GRACE_S = 10
CONTEXT_LENGTH = 8192
ROUTER = """
import sys
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs

worker, port, metrics = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
Router.from_args(
    RouterArgs(worker_urls=[worker], host="127.0.0.1", port=port, prometheus_port=metrics)
).start()
"""
"""The package's command line imports a balancer of its own, which needs more packages."""


def say(text: str) -> None:
    """Write a line at once, so that a log shows it while the next step runs."""
    environment.say("sglang", text)


class ServerStartError(Exception):
    """The server ended or stayed silent before it was ready; the log's end is in the message."""


def free_port() -> int:
    """Return a loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command_line(python: Path, model: Path, port: int) -> list[str]:
    """Return the command of a server that serves a folder in float32 with one thread."""
    return [
        *(str(python), "-m", "sglang.launch_server"),
        *("--model-path", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu", "--dtype", "float32", "--enable-multimodal"),
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--disable-cuda-graph", "--disable-overlap-schedule", "--skip-server-warmup"),
        *("--context-length", str(CONTEXT_LENGTH), "--max-total-tokens", "32768"),
        *("--max-running-requests", "16", "--mem-fraction-static", "0.5"),
    ]


@contextmanager
def running_server(python: Path, model: Path, log: Path) -> Generator[str]:
    """Start a server, wait until it samples, give its address, and stop it whatever happens.

    Raises:
        ServerStartError: It did not become ready.
    """
    port = free_port()
    with _running(command_line(python, model, port), port, log) as url:
        yield url


@contextmanager
def running_router(python: Path, worker: str, log: Path) -> Generator[str]:
    """Start SGLang's own router before a server that runs; as `running_server`."""
    port = free_port()
    command = [str(python), "-c", ROUTER, worker, str(port), str(free_port())]
    with _running(command, port, log) as url:
        yield url


@contextmanager
def _running(command: list[str], port: int, log: Path) -> Generator[str]:
    url = f"http://127.0.0.1:{port}"
    variables = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=sink,
            stdin=subprocess.DEVNULL,
            env=variables,
            start_new_session=True,
        )
        try:
            _wait_until_ready(process, url, log)
            yield url
        finally:
            _stop(process)


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    started = time.monotonic()
    said = started
    while True:
        if process.poll() is not None:
            raise ServerStartError(
                f"the server ended with status {process.returncode} before it was ready; "
                f"the end of {log}:\n{tail(log)}"
            )
        if _is_healthy(url):
            say(f"server: ready at {url} after {time.monotonic() - started:.0f} s")
            return
        now = time.monotonic()
        if now - started > START_TIMEOUT_S:
            raise ServerStartError(
                f"the server was not ready after {START_TIMEOUT_S} s; "
                f"the end of {log}:\n{tail(log)}"
            )
        if now - said > PROGRESS_S:
            said = now
            say(f"server: starting, {now - started:.0f} s")
        time.sleep(1)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=25) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the whole group: a server waits for a hung request for ever after SIGTERM."""
    started = time.monotonic()
    how = "SIGTERM"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        how = "SIGKILL"
    # Its scheduler and detokenizer are in the group and may outlive it.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    say(f"server: stopped with {how} in {time.monotonic() - started:.0f} s")
