"""Commands that grade what an agent left in its folder."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fakes.agent_runs import command, played

from envkit.errors import ConfigurationError
from envkit.rollout import Interrupt
from envkit.trajectory import StopReason

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
    hanging = LEAVE + "import time; time.sleep(600)"
    found = await played(graded(tmp_path, "sys.exit(0)", agent=hanging, timeout_s=5))

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
    code = "own = os.environ['ENVKIT_GRADE_DIR'] + '/reward.txt'\n"
    code += f"if os.path.exists('found.txt'): {failure}\n"
    found = await played(graded(tmp_path, code, timeout_s=5))

    assert (found.reward, found.stop_reason) == (0.0, StopReason.TERMINATED)
    assert "agent.grade" in found.turns[-1].info["ungraded"]


async def test_grade_that_cannot_start_is_a_fault(tmp_path: Path) -> None:
    found = await played({**command(tmp_path, LEAVE), "grade": "no-such-grader"})

    assert found.stop_reason is StopReason.ENV_FAULT
    assert found.fault is not None
    assert "no-such-grader" in found.fault.message


@pytest.mark.slow
async def test_grade_that_hangs_is_a_fault(tmp_path: Path) -> None:
    found = await played(graded(tmp_path, "time.sleep(600)", timeout_s=4))

    assert found.stop_reason is StopReason.ENV_FAULT
    assert found.fault is not None
    assert "timeout_s" in found.fault.message


@pytest.mark.slow
async def test_abort_while_the_grade_runs_is_an_abort(tmp_path: Path) -> None:
    started = tmp_path / "started"
    interrupt = Interrupt(grace_s=0.1)
    code = f"open({str(started)!r}, 'w').close(); time.sleep(600)"
    playing = asyncio.create_task(played(graded(tmp_path, code), interrupt=interrupt))
    deadline = time.monotonic() + 30
    while not started.exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    interrupt.fire()
    found = await asyncio.wait_for(playing, 30)

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
