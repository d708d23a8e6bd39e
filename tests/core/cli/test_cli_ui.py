"""`envkit ui`: what it prints, how it ends, and what it refuses."""

import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.command import run_envkit, start_envkit
from fakes.marked_runs import grouped_run

from envkit.trajectory import save
from envkit.trajectory.storage import FILE_NAME


@contextmanager
def shown(*arguments: object) -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    """Run the command on a free port; give its address and its process."""
    process = start_envkit("ui", *arguments, "--port", 0, "--no-open")
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?key=\S{32}", line), line
        yield line, process
    finally:
        process.kill()
        process.communicate()


def interrupted(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Press Ctrl-C; return the exit code and standard error."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


def test_ui_serves_until_ctrl_c(tmp_path: Path) -> None:
    save(grouped_run(groups=1), tmp_path / "run" / FILE_NAME)
    with shown(tmp_path) as (address, process):
        with urllib.request.urlopen(address, timeout=30) as page:
            assert page.status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address.split("?")[0], timeout=30)
        code, errors = interrupted(process)
    assert code == 0
    assert errors.splitlines() == ["press Ctrl-C to stop", "stopped"]


@pytest.mark.slow
def test_ui_waits_in_a_folder_without_runs(tmp_path: Path) -> None:
    with shown(tmp_path) as (_, process):
        code, errors = interrupted(process)
    assert code == 0
    assert errors.splitlines()[0] == (
        f"{tmp_path} has no runs yet; they appear when a rollout starts"
    )


@pytest.mark.slow
def test_ui_makes_a_new_key_each_time(tmp_path: Path) -> None:
    with shown(tmp_path) as (first, _), shown(tmp_path) as (second, _):
        assert first.partition("key=")[2] != second.partition("key=")[2]


def test_ui_says_that_its_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = run_envkit("ui", tmp_path, "--port", port, "--no-open")
    assert outcome.code == 1
    assert f"port {port} of 127.0.0.1 is in use" in outcome.last_error


@pytest.mark.parametrize("name", ["missing", "file"])
def test_ui_refuses_what_is_not_a_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run_envkit("ui", tmp_path / name, "--no-open")
    assert outcome.code == 1
    assert name in outcome.last_error


def test_ui_says_that_a_folder_cannot_be_read(tmp_path: Path) -> None:
    run_envkit("ui", tmp_path / "missing", "--no-open")  # imports what another user could not
    folder = tmp_path / "runs"
    folder.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:  # root reads everything
        os.seteuid(65534)
    try:
        outcome = run_envkit("ui", folder, "--port", 0, "--no-open")
    finally:
        os.seteuid(user)
    assert outcome.code == 1
    assert "runs" in outcome.last_error
    assert "Permission denied" in outcome.last_error


@pytest.mark.slow
def test_ui_shows_the_folder_of_runs_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with shown() as (_, process):
        _, errors = interrupted(process)
    assert errors.startswith("runs has no runs yet")
