"""Commands that play, grade or misbehave, and harnesses named in one word."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.agent_runs import ASK, TIMEOUT_S, command, played
from fakes.matrix import share
from fakes.processes import wait_until_gone
from fakes.virtual_time import outlast, skip
from fakes.waiting import until

import envkit_gateway
from envkit.cli.play_options import PlayOptions
from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.rollout import Interrupt
from envkit.trajectory import StopReason, Trajectory
from envkit_gateway import AgentSettings
from envkit_gateway.harnesses import HARNESSES


async def ended(tmp_path: Path, code: str, **options: Any) -> Trajectory:
    """Play an episode of a command; it must not take long."""
    return await asyncio.wait_for(played({**command(tmp_path, code), **options}), 120)


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
    code = LINGER.format(pid=str(pid), signal=signal)
    found = await outlast(
        played(command(tmp_path, code)), TIMEOUT_S, begun=lambda: pid.exists() and pid.read_text()
    )

    assert found.turns
    assert found.stop_reason in (StopReason.ENV_TRUNCATED, StopReason.STEP_TIMEOUT)
    assert wait_until_gone([int(pid.read_text())]) == []


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
        code = process.wait(120)
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
    "written", share(["nan", "1e400", "-inf", "True", "much", "", "1,5", "0.5 0.5", "\\x00"], of=4)
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
    "make", share(["os.mkfifo", "os.mkdir", "lambda path: os.symlink('/dev/zero', path)"], of=2)
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


LEAVE = """
open("found.txt", "w").write(answer)
open("reward.txt", "w").write("100")
"""

"""An agent that leaves its work, and a reward that it would like."""


def graded(tmp_path: Path, code: str, *, agent: str = LEAVE, **options: Any) -> dict[str, Any]:
    """Return an agent that is graded by a Python script."""
    script = tmp_path / "grade.py"
    script.write_text("import json, os, sys, time\n" + code, encoding="utf-8")
    setting = {**command(tmp_path, agent), **options}
    return {**setting, "grade": [sys.executable, "-I", str(script)]}


@pytest.mark.parametrize(("status", "reward"), [(0, 1.0), (5, 0.0)])
async def test_exit_status_of_the_grade_is_the_reward(
    tmp_path: Path, status: int, reward: float
) -> None:
    found = await played(graded(tmp_path, f"print('seen'); sys.exit({status})"))

    assert (found.reward, found.stop_reason) == (reward, StopReason.TERMINATED)
    output = found.turns[-1].info["grade_output"]
    assert output == {"exit_status": status, "stdout": "seen\n", "stderr": ""}


@pytest.mark.slow
async def test_grade_by_pytest_sees_the_work_and_the_whole_task(tmp_path: Path) -> None:
    tests = tmp_path / "test_work.py"
    tests.write_text(
        "import json, os, pathlib\n"
        "def test_work():\n"
        "    task = json.load(open(os.environ['ENVKIT_GRADE_DIR'] + '/task.json'))\n"
        "    assert pathlib.Path('found.txt').read_text() == task['codes'][0]\n"
    )
    agent = command(tmp_path, LEAVE)
    grade = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    right = await played({**agent, "grade": grade})
    tests.write_text(tests.read_text().replace("==", "!="))
    wrong = await played({**agent, "grade": grade})

    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert "1 passed" in right.turns[-1].info["grade_output"]["stdout"]


async def test_number_of_the_grade_comes_before_its_status(tmp_path: Path) -> None:
    code = "open(os.environ['ENVKIT_GRADE_DIR'] + '/reward.txt', 'w').write('0.25')"
    found = await played(graded(tmp_path, code))

    assert found.reward == 0.25


@pytest.mark.parametrize("written", ["much", "nan"])
async def test_grade_that_is_no_number_is_a_fault(tmp_path: Path, written: str) -> None:
    code = f"open(os.environ['ENVKIT_GRADE_DIR'] + '/reward.txt', 'w').write({written!r})"
    found = await played(graded(tmp_path, code))

    assert found.reward is None
    assert found.fault is not None
    assert "reward.txt" in found.fault.message


async def test_agent_that_failed_is_graded_and_truncated(tmp_path: Path) -> None:
    found = await played(graded(tmp_path, "sys.exit(0)", agent=LEAVE + "sys.exit(3)"))

    assert (found.reward, found.stop_reason) == (1.0, StopReason.ENV_TRUNCATED)


@pytest.mark.slow
async def test_agent_that_was_stopped_is_graded(tmp_path: Path) -> None:
    started = tmp_path / "started"
    hanging = f"{LEAVE}open({str(started)!r}, 'w').close(); import time; time.sleep(600)"
    playing = played(graded(tmp_path, "sys.exit(0)", agent=hanging))
    found = await outlast(playing, TIMEOUT_S, begun=started.exists)

    assert (found.reward, found.stop_reason) == (1.0, StopReason.STEP_TIMEOUT)


@pytest.mark.parametrize(
    "code",
    ["sys.exit(126)", "sys.exit(127)", "os.kill(os.getpid(), 9)"],
    ids=["not-executable", "not-found", "killed"],
)
async def test_grade_without_a_verdict_is_a_fault(tmp_path: Path, code: str) -> None:
    found = await played(graded(tmp_path, code))

    assert (found.reward, found.stop_reason) == (None, StopReason.ENV_FAULT)
    assert found.fault is not None
    assert "agent.grade" in found.fault.message


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param("os.kill(os.getpid(), 9)", id="killed"),
        pytest.param("sys.exit(126)", id="not-executable"),
        pytest.param("open(own, 'w').write('inf')", id="no-number"),
        pytest.param("time.sleep(600)", id="hangs", marks=pytest.mark.slow),
    ],
)
async def test_grade_that_only_the_agents_work_breaks_is_zero(tmp_path: Path, failure: str) -> None:
    started = tmp_path / "started"
    code = f"open({str(started)!r}, 'w').close()\n"
    code += "own = os.environ['ENVKIT_GRADE_DIR'] + '/reward.txt'\n"
    code += f"if os.path.exists('found.txt'): {failure}\n"
    seconds = TIMEOUT_S if "sleep" in failure else 0
    found = await outlast(played(graded(tmp_path, code)), seconds, begun=started.exists)

    assert (found.reward, found.stop_reason) == (0.0, StopReason.TERMINATED)
    assert "agent.grade" in found.turns[-1].info["ungraded"]


async def test_grade_that_cannot_start_is_a_fault(tmp_path: Path) -> None:
    found = await played({**command(tmp_path, LEAVE), "grade": "no-such-grader"})

    assert found.stop_reason is StopReason.ENV_FAULT
    assert found.fault is not None
    assert "no-such-grader" in found.fault.message


@pytest.mark.slow
async def test_grade_that_hangs_is_a_fault(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    code = f"open({str(runs)!r}, 'a').write('x'); time.sleep(600)"
    playing = asyncio.create_task(played(graded(tmp_path, code)))
    for grades in (1, 2):  # of the agent's work, and of none
        await until(lambda grades=grades: runs.exists() and len(runs.read_text()) == grades)
        skip(TIMEOUT_S)
    found = await playing

    assert found.stop_reason is StopReason.ENV_FAULT
    assert found.fault is not None
    assert "timeout_s" in found.fault.message


@pytest.mark.slow
async def test_abort_while_the_grade_runs_is_an_abort(tmp_path: Path) -> None:
    started = tmp_path / "started"
    interrupt = Interrupt(grace_s=0.1)
    code = f"open({str(started)!r}, 'w').close(); time.sleep(600)"
    playing = asyncio.create_task(played(graded(tmp_path, code), interrupt=interrupt))
    await until(started.exists)
    interrupt.fire()
    found = await asyncio.wait_for(playing, 120)

    assert (found.reward, found.stop_reason) == (None, StopReason.ABORTED)


TAMPER = """
import pathlib, subprocess
(pathlib.Path.home() / "trusted").write_text("1")
code = (
    "import glob, time\\n"
    "while True:\\n"
    "    for folder in glob.glob(FOLDER + '/envkit-grade-*'):\\n"
    "        open(folder + '/reward.txt', 'w').write('100')\\n"
    "    time.sleep(0.01)\\n"
)
for own in (False, True):
    subprocess.Popen([sys.executable, "-c", code], start_new_session=own)
"""


@pytest.mark.slow
async def test_agent_cannot_tamper_with_its_grade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by processes that it leaves, nor by its home, nor by a reward of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check = (
        "time.sleep(0.5)\n"
        "assert not os.path.exists(os.path.expanduser('~/trusted'))\n"
        "assert 'ENVKIT_TASK_DIR' not in os.environ and 'ENVKIT_MODEL' not in os.environ\n"
        "sys.exit(1)\n"
    )
    tamper = TAMPER.replace("FOLDER", repr(str(tmp_path)))
    found = await played(graded(tmp_path, check, agent=LEAVE + tamper))

    assert found.reward == 0.0
    assert found.turns[-1].info["grade_output"]["stderr"] == ""


@pytest.mark.parametrize(
    "agent",
    [
        {"function": "fakes.own_agents:answering", "grade": "pytest -q"},
        {"command": "x", "grade": ""},
        {"command": "x", "grade": "'"},
    ],
)
async def test_wrong_grade_is_refused_before_any_episode(agent: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"agent\.grade"):
        await played(agent)


# It answers with what it was given, after one request.
STAND_IN = f"#!{sys.executable}\n{ASK}\nprint(*sys.argv[1:], sys.stdin.read(), sep='|')\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of programs, which alone is searched."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _absent(_module: str) -> None:
    """Find no module."""


@pytest.mark.parametrize("name", HARNESSES)
def test_missing_harness_says_how_to_install_it(
    name: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit_gateway.harnesses.find_spec", _absent)
    with pytest.raises(MissingDependencyError, match=re.escape(HARNESSES[name].install)):
        AgentSettings.read(name)


@pytest.mark.parametrize("name", HARNESSES)
def test_harness_is_named_by_the_option_and_the_setting(name: str) -> None:
    for agent in (name, f"{name} --model a:b"):
        options = PlayOptions(agent=agent, settings=["agent.command=true"])
        assert options.rollout_config(env_id="canary-v0").agent == {"harness": agent}


def test_page_names_every_harness_and_its_install() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text(encoding="utf-8")
    for name, harness in HARNESSES.items():
        assert f"| `{name}` | `{harness.install}` |" in page


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("claudecode", "Did you mean 'claude-code'"),
        ("", "neither module:function nor a known harness"),
        ("codex 'a", "No closing quotation"),
        ({"harness": "codex", "command": "true"}, "one of function, command and harness"),
    ],
)
def test_wrong_harness_is_refused(setting: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AgentSettings.read(setting)


async def test_harness_gets_its_arguments_and_the_task(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (programs / "claude").write_text(STAND_IN)
    (programs / "claude").chmod(0o755)
    found = await played("claude-code --max-turns 5 --append-system-prompt 'a: b'")

    output = found.turns[-1].info["agent_output"]["stdout"]
    *arguments, task = output.split("|")
    assert arguments[-4:] == ["--max-turns", "5", "--append-system-prompt", "a: b"]
    assert task.strip().endswith("The images of the task: image-1.png")
