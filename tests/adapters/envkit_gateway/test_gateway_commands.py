"""Commands that misbehave: each ends as a typed outcome, and nothing that it started goes on."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.agent_runs import command, played

import envkit_gateway
from envkit.trajectory import StopReason, Trajectory


async def ended(tmp_path: Path, code: str, **options: Any) -> Trajectory:
    """Play an episode of a command; it must not take long."""
    return await asyncio.wait_for(played({**command(tmp_path, code), **options}), 60)


async def check_gone(pid: Path) -> None:
    """Check that a process is gone soon."""
    deadline = time.monotonic() + 10
    while psutil.pid_exists(int(pid.read_text())) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not psutil.pid_exists(int(pid.read_text()))


LINGER = """
import signal, subprocess, time
code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
open({pid!r}, "w").write(child.stdout.readline())
os.kill(os.getppid(), signal.{signal})
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
async def test_command_that_attacks_its_supervisor_leaves_nothing(
    tmp_path: Path, signal: str
) -> None:
    pid = tmp_path / "pid"
    found = await ended(tmp_path, LINGER.format(pid=str(pid), signal=signal), timeout_s=5)

    assert found.turns
    assert found.stop_reason in (StopReason.ENV_TRUNCATED, StopReason.STEP_TIMEOUT)
    await check_gone(pid)


AS_ON_MACOS = """
import ctypes, os, runpy, subprocess, sys
listed, sys.platform, ctypes.CDLL = os.listdir, "darwin", None
def list_folder(path="."):
    assert not str(path).startswith("/proc"), "it has no such folder"
    return listed(path)
os.listdir = list_folder
if not os.path.exists("/bin/ps"):  # Debian's smallest installation has none, macOS always has
    def run_ps(command, **given):
        assert command == ["/bin/ps", "-A", "-o", "pid=,ppid="]
        pairs = []
        for name in filter(str.isdigit, listed("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    pairs.append(name + " " + file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
        return subprocess.CompletedProcess(command, 0, "\\n".join(pairs))
    subprocess.run = run_ps
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LEAVES_TWO = """
import os, subprocess, sys, time
for own in (False, True):
    subprocess.Popen(["sleep", "600"], start_new_session=own)
print(*open(f"/proc/self/task/{os.getpid()}/children").read().split(), flush=True)
"""


@pytest.mark.parametrize(("rest", "left"), [("time.sleep(600)", 0), ("sys.exit(3)", 1)])
def test_supervisor_needs_neither_prctl_nor_proc(tmp_path: Path, rest: str, left: int) -> None:
    """Without them, a process that left the group of a command that ended is not found."""
    supervise = Path(envkit_gateway.__file__).with_name("supervise.py")
    own = [sys.executable, "-ISB", "-c", AS_ON_MACOS, str(supervise), str(1 << 30)]
    with (
        open(os.devnull) as nothing,
        subprocess.Popen(
            [*own, str(nothing.fileno()), sys.executable, "-c", LEAVES_TWO + rest],
            cwd=tmp_path,
            pass_fds=[nothing.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        if left == 0:
            process.terminate()
        code = process.wait(60)
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    alive = [one for one in found if one.status() != psutil.STATUS_ZOMBIE]
    for one in alive:
        one.kill()
    assert (code, len(pids), len(alive)) == (3 if left else 137, 2, left)


DEEP = """
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
import time; time.sleep({seconds})
"""


@pytest.mark.slow
async def test_command_that_nests_folders_is_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    found = await ended(tmp_path, DEEP.format(seconds=3) + "print(answer)")

    assert found.stop_reason is StopReason.TERMINATED
    assert list(own.iterdir()) == []


REPLACED = """
for name in ("stdout.log", "stderr.log"):
    os.remove(f"../{{name}}")
    {then}
"""


@pytest.mark.parametrize("then", ["os.mkfifo(f'../{name}')", "pass", "os.mkdir(f'../{name}')"])
async def test_command_that_replaces_its_logs_does_not_hang(tmp_path: Path, then: str) -> None:
    code = "print('note', file=sys.stderr, flush=True)\n" + REPLACED.format(then=then)
    found = await ended(tmp_path, code + "print(answer)")

    assert found.stop_reason is StopReason.TERMINATED
    assert found.turns[-1].info["agent_output"]["stderr"] == "note\n"


@pytest.mark.parametrize("grade", [None, "true"])
async def test_command_that_removes_its_folder_has_a_typed_end(
    tmp_path: Path, grade: str | None
) -> None:
    code = "import shutil; shutil.rmtree('..', ignore_errors=True)"
    found = await ended(tmp_path, code, grade=grade)

    assert (found.stop_reason, found.reward) == (StopReason.TERMINATED, 0.0)
    if grade is not None:  # nothing is left to grade
        assert "the agent removed it" in found.turns[-1].info["ungraded"]


@pytest.mark.parametrize(
    "written", ["nan", "1e400", "-inf", "True", "much", "", "1,5", "0.5 0.5", "\\x00"]
)
async def test_reward_of_a_command_that_is_no_finite_number_is_zero(
    tmp_path: Path, written: str
) -> None:
    found = await ended(tmp_path, f"open('reward.txt', 'w').write('{written}')")

    assert (found.stop_reason, found.reward) == (StopReason.TERMINATED, 0.0)
    assert "reward.txt must hold a finite number" in found.turns[-1].info["ungraded"]


async def test_junk_reward_of_an_agent_is_replaced_by_its_grade(tmp_path: Path) -> None:
    code = "open('reward.txt', 'w').write('much'); print(answer)"
    found = await ended(tmp_path, code, grade="true")

    assert (found.reward, "ungraded" in found.turns[-1].info) == (1.0, False)


@pytest.mark.parametrize("status", [126, 127, 137])
async def test_command_that_exits_as_if_it_had_not_started_is_scored(
    tmp_path: Path, status: int
) -> None:
    found = await ended(tmp_path, f"sys.exit({status})")

    assert (found.stop_reason, found.reward) == (StopReason.ENV_TRUNCATED, 0.0)
    assert f"status {status}" in found.turns[-1].info["agent_error"]


@pytest.mark.parametrize(
    "make", ["os.mkfifo", "os.mkdir", "lambda path: os.symlink('/dev/zero', path)"]
)
@pytest.mark.parametrize("name", ["answer.txt", "reward.txt"])
async def test_file_that_is_no_file_is_as_good_as_none(
    tmp_path: Path, name: str, make: str
) -> None:
    found = await ended(tmp_path, f"({make})({name!r}); print(answer)")

    assert found.stop_reason is StopReason.TERMINATED
    assert found.turns[-1].info["agent_output"]["stdout"]


async def test_command_that_closes_everything_gives_an_empty_answer(tmp_path: Path) -> None:
    found = await ended(tmp_path, "[os.close(n) for n in range(3)]")

    assert found.stop_reason is StopReason.TERMINATED
    assert found.turns[-1].info["agent_output"]["exit_status"] == 0


async def test_command_that_writes_without_end_is_stopped(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
    code += "while True: os.write(1, bytes(1 << 20))"
    found = await ended(tmp_path, code, max_disk_mb=20)

    assert found.stop_reason is StopReason.ENV_TRUNCATED
    assert "max_disk_mb" in found.turns[-1].info["agent_error"]
