"""Sandboxes in stand-ins for containers: where none can start, no episode begins."""

import json
import os
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.containers import NO_NAMESPACES, NO_SWITCH, ONE_USER, envkit_inside, python_inside
from fakes.needs import BUBBLEWRAP, DESKTOP, packages

from envkit.errors import EnvFault, FaultKind, RefusedError
from envkit_sandbox.bubblewrap import Sandbox, SandboxSpec, end, spawn
from envkit_sandbox.channel import Channel
from envkit_sandbox.trial import check_sandbox

_DOCTOR = """
import dataclasses, json
from envkit.cli.checks import _plugin_checks
print(json.dumps({check.name: dataclasses.asdict(check) for check in _plugin_checks()}))
"""
"""The part of `envkit doctor` that imports no torch."""


def _checked(prefix: tuple[str, ...], name: str) -> dict[str, str]:
    return json.loads(python_inside(prefix, _DOCTOR).stdout)[name]


@pytest.mark.parametrize(
    ("plugin", "env_id"),
    [
        pytest.param("terminal", "terminal-v0", marks=BUBBLEWRAP.mark),
        pytest.param(
            "linux-desktop", "computer-use-linux-v0", marks=[DESKTOP.mark, pytest.mark.slow]
        ),
    ],
)
def test_refused_namespaces_end_a_run_before_its_first_episode_as_doctor_says(
    plugin: str, env_id: str, tmp_path: Path
) -> None:
    run = ("rollout", env_id, "--policy", "oracle", "-n", 2, "--out", tmp_path / "run")
    done = envkit_inside(NO_NAMESPACES, *run)
    assert done.returncode == 2
    check = _checked(NO_NAMESPACES, plugin)
    assert check["status"] == "no"
    for text in (done.stderr, check["found"]):
        for word in ("No permissions to creat", "seccomp=unconfined", "systempaths=unconfined"):
            assert word in " ".join(text.split())
    assert check["fix"].startswith("docker run --security-opt")
    assert not [*tmp_path.glob("run/*.jsonl")]


@BUBBLEWRAP.mark
@pytest.mark.parametrize("prefix", [ONE_USER, pytest.param(NO_SWITCH, marks=pytest.mark.slow)])
def test_root_that_cannot_become_another_user_plays_as_doctor_says(
    prefix: tuple[str, ...], tmp_path: Path
) -> None:
    if prefix is NO_SWITCH and os.geteuid() != 0:
        pytest.skip("only root can drop a capability")
    done = envkit_inside(
        prefix, *("rollout", "terminal-v0", "--policy", "oracle", "-n", 2, "--json"),
        *("--out", tmp_path / "run"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["reward/mean"] == 1.0
    check = _checked(prefix, "terminal")
    assert (check["status"], check["found"]) == ("ok", "sandboxes start, as user 0")


@contextmanager
def _bubblewrap_saying(words: str, code: int, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Put a program named bwrap first on the path, where user 65534 can run it as well."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = Path(folder, "bwrap")
        program.write_text(f"#!/bin/sh\necho 'bwrap: {words}' >&2\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", folder, prepend=os.pathsep)
        check_sandbox.cache_clear()
        yield
    check_sandbox.cache_clear()


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("Can't mount proc on /newroot/proc: Operation not permitted", "unmask=ALL"),
        ("Unexpected capabilities but not setuid", "--user 0"),
        ("setting up uid map: Operation not permitted", "run --"),
        ("Something that nobody has seen yet", "docs/running/containers.md"),
    ],
)
@packages("pyseccomp").mark
def test_a_trial_start_that_fails_gives_bubblewraps_reason_and_a_fix(
    words: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        _bubblewrap_saying(words.replace("'", "'\\''"), 1, monkeypatch),
        pytest.raises(RefusedError) as caught,
    ):
        check_sandbox()
    assert words in str(caught.value)
    assert fix in str(caught.value).partition("Fix it with: ")[2]


@pytest.mark.parametrize("number", [11, 12, 23, 24])
@packages("pyseccomp").mark
def test_a_machine_short_of_something_is_not_said_to_refuse_sandboxes(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"Creating new namespace failed: {os.strerror(number)}"
    with _bubblewrap_saying(words, 1, monkeypatch):
        with pytest.raises(EnvFault) as caught:
            check_sandbox()
        with pytest.raises(EnvFault):  # a failure is not remembered
            check_sandbox()
    assert caught.value.kind is FaultKind.TRANSIENT


@contextmanager
def _ended(spec: SandboxSpec, command: str) -> Generator[tuple[Sandbox, EnvFault]]:
    pipe = subprocess.PIPE
    sandbox = spawn(spec, ["sh", "-c", command], stdin=pipe, stdout=pipe)
    try:
        with pytest.raises(EnvFault) as caught:
            Channel(sandbox, "the sandbox").reply(30)
        yield sandbox, caught.value
    finally:
        end(sandbox)


@BUBBLEWRAP.mark
def test_a_sandbox_that_is_gone_says_why() -> None:
    spec = SandboxSpec(hostname="x", binds={"/mine": "/no/such/folder"})
    with _ended(spec, "true") as (_, fault):
        assert "the sandbox is gone: bwrap: Can't find source path" in str(fault)


@BUBBLEWRAP.mark
def test_a_sandbox_that_writes_errors_without_end_fills_no_memory() -> None:
    with _ended(SandboxSpec(hostname="x"), "yes complaint >&2 2>/dev/null; true") as (one, fault):
        assert len(str(fault)) < 400
        assert os.fstat(one.log).st_size == 4096
    assert one.log < 0


_WITHOUT_THREADS = """
import threading
from pathlib import Path
from envkit.errors import EnvFault
from envkit_sandbox.bubblewrap import SandboxSpec, end, spawn

def refuse(thread):
    raise RuntimeError("can't start new thread")

start, threading.Thread.start = threading.Thread.start, refuse
for _ in range(3):
    try:
        spawn(SandboxSpec(hostname="x"), ["sleep", "60"])
    except EnvFault as fault:
        print(fault.kind, fault)
threading.Thread.start = start
sandbox = spawn(SandboxSpec(hostname="x"), ["sleep", "60"])
tasks = Path("/proc/self/task").glob("*/children")
print(len([child for task in tasks for child in task.read_text().split()]), "started")
end(sandbox)
"""


@BUBBLEWRAP.mark
def test_sandbox_that_found_no_thread_does_not_start_later() -> None:
    done = python_inside((), _WITHOUT_THREADS)
    *refusals, last = done.stdout.splitlines()
    expected = "transient bubblewrap did not start: can't start new thread"
    assert refusals == [expected] * 3, done.stderr
    assert last == "1 started"
