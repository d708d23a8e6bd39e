"""Tasks in podman's containers, started by Harbor.

They need root, podman with runc, and an image `ubuntu:24.04` on this machine, which may be another
system under that name; see the page on Harbor. `ENVKIT_TEST_CONTAINERS=1 make contract-harbor` runs
them.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.harbor_tasks import ONE, ZERO, write_task
from fakes.oracles import steps_of

from envkit.errors import EnvFault
from envkit_harbor.worker import close_workers, worker_for
from envkit_sandbox.commands import write

pytestmark = pytest.mark.skipif(
    "ENVKIT_TEST_CONTAINERS" not in os.environ or shutil.which("podman") is None,
    reason="needs podman and ENVKIT_TEST_CONTAINERS=1",
)
OFFLINE = '[environment]\nnetwork_mode = "no-network"\n[verifier]\ntimeout_sec = 60\n'
HOSTS = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.example"]\n'


def listed() -> set[str]:
    """Return what podman has of workers: containers, networks and images."""
    found: set[str] = set()
    for words in (("ps", "-a"), ("network", "ls"), ("image", "ls")):
        shown = subprocess.check_output(["podman", *words], text=True)
        found |= {word for word in shown.split() if "envkit-harbor-" in word}
    return found


def test_oracle_solves_and_doing_nothing_fails(tasks: Path, make_env: Callable[..., Any]) -> None:
    write_task(tasks)
    env = make_env(backend="podman")

    assert steps_of(env, seed=1)[-1].reward == 1.0
    env.reset(seed=1)
    assert env.step("Done.")[1] == 0.0
    close_workers()
    assert listed() == set()


def test_container_has_no_network_on_request_and_a_process_limit(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks, config=OFFLINE)
    env = make_env(backend="podman")
    env.reset(seed=1)

    step = env.step(write("cat /proc/net/dev; cat /sys/fs/cgroup/pids/pids.max", env.protocol))

    assert "eth0" not in step[0]["text"]
    assert step[0]["text"].endswith("\n512\n[exit code 0]")


def test_task_that_lists_hosts_is_refused_alone(tasks: Path, make_env: Callable[..., Any]) -> None:
    write_task(tasks, "hosts", config=HOSTS)
    write_task(tasks, test=ONE)
    env = make_env(backend="podman")

    with pytest.raises(EnvFault, match="allowlist"):
        env.reset(seed=1, options={"task": {"name": "hosts"}})
    env.reset(seed=1, options={"task": {"name": "hello"}})
    assert env.step("Done.")[1] == 1.0


def test_deadline_ends_the_process_inside(tasks: Path, make_env: Callable[..., Any]) -> None:
    write_task(tasks)
    env = make_env(backend="podman", command_seconds=2.0)
    env.reset(seed=1)

    late = env.step(write("sleep 543", env.protocol))[0]["text"]
    look = env.step(write("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", env.protocol))[0]["text"]

    assert "stopped after 2 s, its deadline" in late
    assert "sleep 543" not in look


def test_processes_left_behind_do_not_write_the_reward(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks, test=f"sleep 0.5; {ZERO}; sleep 0.5")
    env = make_env(backend="podman")
    env.reset(seed=1)
    forge = "while :; do echo 1 > /logs/verifier/reward.json; sleep 0.01; done"

    env.step(write(f"(setsid sh -c '{forge}' > /dev/null 2>&1 &); sleep 0.5", env.protocol))

    assert env.step("Done.")[4]["rewards"] == {"reward": 0.0}


def test_killed_worker_leaves_no_container_network_or_image(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks)
    env = make_env(backend="podman")
    env.reset(seed=1)
    os.kill(worker_for(None, ()).process, signal.SIGKILL)
    with pytest.raises(EnvFault):
        env.step(write("true", env.protocol))
    assert listed()

    close_workers()

    assert listed() == set()
