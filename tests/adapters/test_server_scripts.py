"""The scripts that start real servers: they stop what they start, and say which part failed."""

import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.processes import wait_until_gone

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "servers"

# Stands in for the environment's interpreter: answers /health, and has a child that does not exit.
SERVER = """
import http.server, os, signal, subprocess, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

port = int(sys.argv[sys.argv.index("--port") + 1])
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def interpreter(tmp_path: Path, program: str) -> Path:
    source = tmp_path / "program.py"
    source.write_text(textwrap.dedent(program))
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {source} "$@"\n')
    script.chmod(0o755)
    return script


def giving(python: Path) -> Callable[[object], Path]:
    """Stand in for the building of an environment."""

    def ensure_environment(_recipe: object) -> Path:
        return python

    return ensure_environment


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    for folder in (SCRIPTS, SCRIPTS.parent / "contracts"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("server")


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
@pytest.mark.slow
def test_server_is_stopped_with_its_children_even_when_the_test_fails(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = tmp_path / "logs" / "server.log"
    python = interpreter(tmp_path, SERVER)
    monkeypatch.setattr(server, "ensure_environment", giving(python))

    def run() -> None:
        with server.running_server(server.SERVERS[kind], tmp_path, log) as url:
            assert url.startswith("http://127.0.0.1:")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    child = int(log.read_text().split()[1])
    assert wait_until_gone([child]) == []


@pytest.mark.slow
def test_server_that_ends_early_is_reported_with_the_end_of_its_log(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = interpreter(tmp_path, "import sys; print('no such model'); sys.exit(7)")
    monkeypatch.setattr(server, "ensure_environment", giving(python))
    with (
        pytest.raises(server.ServerStartError, match=r"status 7(?s:.)*no such model"),
        server.running_server(server.SGLANG, tmp_path, tmp_path / "server.log"),
    ):
        pytest.fail("the server never answered, so the body must not run")


@pytest.mark.slow
def test_environment_that_cannot_be_built_has_its_own_exit_status(tmp_path: Path) -> None:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PIP_")},
        "ENVKIT_TEST_CACHE": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "contract.py"), "vllm", "--build-only"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the environment could not be built" in done.stdout
    assert "No matching distribution" in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
