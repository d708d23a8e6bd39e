"""Nothing is left of sandboxes after a close, a killed worker, or a killed driver."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.harbor_tasks import write_task

from envkit.errors import EnvFault, FaultKind
from envkit_harbor.leftovers import sweep
from envkit_harbor.worker import close_workers, worker_for
from envkit_sandbox.commands import write

DRIVER = """
import sys
from envkit_harbor import HarborEnv
from envkit_sandbox.commands import write

env = HarborEnv(tasks=sys.argv[1], command_seconds=60.0)
print("ready", flush=True)
while True:
    env.reset(seed=1)
    print("started", flush=True)
    env.step(write("(setsid sleep 599 > /dev/null 2>&1 &) ; sleep 0.2", env.protocol))
    print("ran", flush=True)
    env.step("Done.")
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the folders of workers below another folder, also in drivers that a test starts.

    Sandboxes of root run as another user, who may not enter `tmp_path`, which exists by now.
    """
    close_workers()
    folder = Path(tempfile.mkdtemp(prefix="harbor-tests-"))
    folder.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    close_workers()
    shutil.rmtree(folder)


def named(folder: Path) -> list[str]:
    """Return the command lines of processes that name a folder, besides this one's children."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found


def wait_until_gone(folder: Path) -> None:
    until = time.monotonic() + 30
    while named(folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert named(folder) == []


def test_close_leaves_nothing(temporary: Path, tasks: Path, make_env: Callable[..., Any]) -> None:
    write_task(tasks)
    env = make_env()
    env.reset(seed=1)
    env.step(write("(setsid sleep 599 > /dev/null 2>&1 &)", env.protocol))
    env.close()
    env.close()
    (folder,) = temporary.iterdir()
    assert {path.name for path in folder.iterdir()} == {"lock", "temporary"}

    close_workers()

    assert list(temporary.iterdir()) == []
    wait_until_gone(temporary)


def test_killed_worker_is_a_fault_and_another_one_starts(
    temporary: Path, tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks)
    env = make_env()
    env.reset(seed=1)
    os.kill(worker_for(None, ()).process, signal.SIGKILL)

    with pytest.raises(EnvFault) as caught:
        env.step(write("true", env.protocol))

    assert caught.value.kind is FaultKind.CRASHED
    wait_until_gone(temporary)
    env.reset(seed=1)
    env.step(write("echo hello > out.txt", env.protocol))
    assert env.step("Done.")[1] == 1.0
    close_workers()
    assert list(temporary.iterdir()) == []


KILLS = int(os.environ.get("ENVKIT_HARBOR_KILLS", "6"))


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_driver_leaves_nothing(temporary: Path, tasks: Path, number: int) -> None:
    write_task(tasks)
    kind = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[number % 3]
    words = ("ready", "started", "ran")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tasks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    while driver.stdout.readline().strip() != words[number % len(words)]:
        pass
    time.sleep(number % 7 * 0.03)

    driver.send_signal(kind)
    driver.wait(60)
    driver.stdout.close()

    wait_until_gone(temporary)
    sweep()
    assert list(temporary.iterdir()) == []
