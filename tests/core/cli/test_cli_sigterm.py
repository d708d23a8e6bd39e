"""SIGTERM to a command that is the first process of a container, which ignores it by default."""

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.command import start_envkit
from fakes.matrix import share
from fakes.needs import CONTAINED, FIRST_PROCESS

pytestmark = CONTAINED.mark

SLOW_IMPORT = """
import sys, time
class Slow:
    def find_spec(self, name, path, target=None):
        if name == "envkit.cli.app":
            print("waiting", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Slow())
"""
SLOW_BUILD = """
import time
from fakes.envs import EchoEnv, register_toys
class SlowEnv(EchoEnv):
    def __init__(self):
        print("waiting", flush=True)
        time.sleep(600)
register_toys({"toy-slow-v0": SlowEnv})
"""
SLOW_MODEL = """
import asyncio, time
from envkit.cli import run_rollout
async def build(*_, **__):
    print("waiting", flush=True)
    await asyncio.to_thread(time.sleep, 600)
run_rollout.build_any = build
"""


@contextmanager
def first_process(
    *arguments: object, before: str
) -> Generator[tuple[int, "subprocess.Popen[str]"]]:
    """Run the command as process 1 until its first line; give its pid out here, and what waits."""
    process = start_envkit(*arguments, before=before, under=FIRST_PROCESS)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), process.communicate()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        yield int(children), process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "before"),
    share(
        [
            (("ui", ".", "--port", "0", "--no-open"), ""),
            (("list",), SLOW_IMPORT),
            (("rollout", "toy-slow-v0", "-n", "1"), SLOW_BUILD),
            (("rollout", "canary-v0", "-n", "1"), SLOW_MODEL),
            (("serve-search", "facts", "--port", "0"), ""),
        ],
        of=5,
    ),
    ids=["ui", "import", "environment", "model", "search"],
)
def test_first_process_of_a_container_ends_at_sigterm(
    arguments: tuple[str, ...], before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with first_process(*arguments, before=before) as (pid, process):
        os.kill(pid, signal.SIGTERM)
        process.wait(120)

    assert process.returncode == 143
