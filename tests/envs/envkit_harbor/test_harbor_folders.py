"""Task folders of Harbor as the driver reads them, one reward of several, and what is left behind.

Nothing here needs Harbor; tests/contracts/harbor plays the folders.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fakes.harbor_tasks import write_task

from envkit.errors import (
    ConfigurationError,
    DatasetError,
    EnvFault,
    FaultKind,
    MissingDependencyError,
    RefusedError,
    UnknownNameError,
)
from envkit.grading import UngradedError
from envkit_harbor import HarborEnv, find_tasks
from envkit_harbor.faults import fault_of
from envkit_harbor.folders import FolderTasks, digest_of, solution_of
from envkit_harbor.leftovers import claim, remove, sweep
from envkit_harbor.rewards import reward_of


def test_folders_are_found_at_any_depth_and_named_by_their_path(tmp_path: Path) -> None:
    write_task(tmp_path, "a/one")
    write_task(tmp_path, "two")

    found = find_tasks(tmp_path)

    assert list(found.folders) == ["a/one", "two"]
    assert found.refused == {}
    assert found.folders["two"].goal == "Write hello to /app/out.txt"
    assert found.folders["two"].verifier_seconds == 30.0
    assert found.folders["two"].start_seconds == 600.0


def test_single_folder_is_a_task(tmp_path: Path) -> None:
    tasks = FolderTasks(write_task(tmp_path, "one"))

    assert tasks.size == 1
    assert tasks.task(0)["name"] == "one"


def test_canary_lines_are_not_part_of_the_goal(tmp_path: Path) -> None:
    text = "<!-- harbor-canary GUID 1 -->\n# canary GUID 2\n\nDo it.\n# canary in the middle\n"
    folder = write_task(tmp_path, files={"instruction.md": text})

    (found,) = find_tasks(folder).folders.values()

    assert found.goal == "Do it.\n# canary in the middle"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "steps": ({"config": '[[steps]]\nname = "a"\n'}, "several steps"),
    "windows": ({"config": '[environment]\nos = "windows"\n'}, "system 'windows'"),
    "syntax": ({"config": "[verifier\n"}, "TOMLDecodeError"),
    "no-tests": ({"test": None}, "no tests/test.sh"),
    "empty": ({"files": {"instruction.md": " \n"}}, "instruction.md is empty"),
    "seconds": ({"config": '[verifier]\ntimeout_sec = "long"\n'}, "timeout_sec must be a number"),
    "table": ({"config": "verifier = 3\n"}, "'verifier' must be a table"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_folder_that_cannot_be_played_is_refused_alone(tmp_path: Path, name: str) -> None:
    given, reason = REFUSED[name]
    write_task(tmp_path, "good")
    write_task(tmp_path, name, **given)

    tasks = FolderTasks(tmp_path)

    assert tasks.size == 1
    assert list(tasks.refused) == [name]
    assert reason in tasks.refused[name]


def test_folder_without_a_playable_task_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no task\.toml"):
        HarborEnv(tasks=str(tmp_path))
    write_task(tmp_path, test=None)
    with pytest.raises(ConfigurationError, match=r"hello: it has no tests/test\.sh"):
        HarborEnv(tasks=str(tmp_path))
    with pytest.raises(ConfigurationError, match="needs tasks="):
        HarborEnv()


def test_arguments_out_of_range_are_refused(tmp_path: Path) -> None:
    folder = str(write_task(tmp_path))
    with pytest.raises(ConfigurationError, match="command_seconds"):
        HarborEnv(tasks=folder, command_seconds=0)
    with pytest.raises(UnknownNameError, match="fenced"):
        HarborEnv(tasks=folder, protocol="fence")
    with pytest.raises(UnknownNameError, match="disk_mib"):
        HarborEnv(tasks=folder, options={"disk": 3})
    with pytest.raises(ConfigurationError, match="processes must be a number above 0"):
        HarborEnv(tasks=folder, options={"processes": 0})
    with pytest.raises(ConfigurationError, match="root must be a folder with a whole system"):
        HarborEnv(tasks=folder, options={"root": str(tmp_path / "none")})


def test_task_of_a_changed_folder_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    task = FolderTasks(tmp_path).task(0)
    (folder / "tests/test.sh").write_text("#!/bin/bash\nexit 1\n")

    changed = FolderTasks(tmp_path)

    with pytest.raises(DatasetError, match="another content"):
        changed.folder_of(task)
    with pytest.raises(DatasetError, match="one of the 1 task folders"):
        changed.folder_of({"name": "other"})
    assert changed.folder_of({"name": "hello"}).path == folder


def test_digest_depends_on_names_contents_and_links(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    before = digest_of(folder)
    (folder / "tests/link").symlink_to("test.sh")
    linked = digest_of(folder)
    (folder / "tests/link").unlink()
    (folder / "tests/link").symlink_to("other")

    assert len({before, linked, digest_of(folder)}) == 3


def test_solution_is_one_command_with_the_tasks_variables(tmp_path: Path) -> None:
    folder = write_task(tmp_path, config='[solution.env]\nNAME = "a b"\n')

    command = solution_of(folder)

    assert "DEBIAN_FRONTEND=noninteractive NAME='a b' /solution/solve.sh" in command
    with pytest.raises(DatasetError, match=r"no solution/solve\.sh"):
        solution_of(write_task(tmp_path, "none", solution=None))


def test_solution_too_large_for_a_command_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "solution/data").write_bytes(os.urandom(200_000))

    with pytest.raises(DatasetError, match="at most 131072 bytes"):
        solution_of(folder)


@pytest.mark.parametrize(
    ("rewards", "key", "reward"),
    [
        ({"reward": 1}, None, 1.0),
        ({"reward": 0.5, "other": 1}, None, 0.5),
        ({"acc": 0.25}, None, 0.25),
        ({"a": 1, "b": 2}, "b", 2.0),
        ({"reward": 1, "b": 2}, "b", 2.0),
    ],
)
def test_reward_is_the_named_or_the_only_number(
    rewards: dict[str, float], key: str | None, reward: float
) -> None:
    assert reward_of(rewards, key) == reward


@pytest.mark.parametrize(
    ("rewards", "key"), [({}, None), ({"a": 1, "b": 2}, None), ({"reward": 1}, "other")]
)
def test_rewards_without_the_key_are_no_reward(rewards: dict[str, float], key: str | None) -> None:
    with pytest.raises(UngradedError, match="reward_key="):
        reward_of(rewards, key)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("EnvironmentStartTimeoutError", FaultKind.TIMEOUT),
        ("HealthcheckError", FaultKind.TRANSIENT),
        ("SandboxLostError", FaultKind.CRASHED),
        ("ImageError", FaultKind.PERMANENT),
        ("ValidationError", FaultKind.PERMANENT),
        ("NeverHeardOfError", FaultKind.TRANSIENT),
    ],
)
def test_errors_of_harbor_become_typed_faults(name: str, kind: FaultKind) -> None:
    fault = fault_of({"type": name, "message": "why"}, "the task 'a' cannot be started")

    assert isinstance(fault, EnvFault)
    assert fault.kind is kind
    assert str(fault) == f"the task 'a' cannot be started: {name}: why"


def test_missing_harbor_and_a_refusing_machine_are_not_faults() -> None:
    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[harbor\]"):
        fault_of({"type": "ModuleNotFoundError", "message": "No module named 'harbor'"}, "x")
    with pytest.raises(RefusedError, match="no namespaces"):
        fault_of({"type": "SandboxRefusedError", "message": "no namespaces"}, "x")


def test_interpreter_that_does_not_exist_is_a_configuration_error(tmp_path: Path) -> None:
    env = HarborEnv(tasks=str(write_task(tmp_path)), python=str(tmp_path / "python"))

    with pytest.raises(ConfigurationError, match=r"Python 3\.12 or newer"):
        env.reset(seed=1)


def test_variable_that_is_not_set_is_a_configuration_error(tmp_path: Path) -> None:
    env = HarborEnv(tasks=str(write_task(tmp_path)), variables=["ENVKIT_NO_SUCH_VARIABLE"])

    with pytest.raises(ConfigurationError, match="ENVKIT_NO_SUCH_VARIABLE"):
        env.reset(seed=1)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this interpreter may have Harbor")
def test_interpreter_without_harbor_names_the_install_line(tmp_path: Path) -> None:
    env = HarborEnv(tasks=str(write_task(tmp_path)))

    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[harbor\]"):
        env.reset(seed=1)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folders of workers below another folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_sweep_leaves_claimed_folders_alone(temporary: Path) -> None:
    claimed = claim()

    assert sweep() == []
    assert claimed.folder.parent == temporary
    remove(claimed)
    assert not claimed.folder.exists()


def test_sweep_ends_processes_of_an_abandoned_folder(temporary: Path) -> None:
    claimed = claim()
    os.close(claimed.lock)  # as if driver and worker were killed
    sleeper = subprocess.Popen(["sh", "-c", "sleep 600; :", str(claimed.folder / "session-1")])
    named = Path(f"/proc/{sleeper.pid}/cmdline")
    while not named.read_bytes():  # the kernel shows it a moment after the start
        time.sleep(0.001)

    assert sweep() == [claimed.folder]

    assert sleeper.wait(10) != 0
    assert list(temporary.iterdir()) == []
