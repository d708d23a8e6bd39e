"""A sandbox over a folder that holds a whole system."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.harbor_tasks import write_task
from fakes.oracles import steps_of

from envkit_harbor.folders import digest_of
from envkit_sandbox.commands import write

PROGRAMS = (
    *("sh", "bash", "cat", "chmod", "echo", "env", "gzip", "base64", "ls", "mkdir", "rm", "tar"),
    *("touch", "test"),
)
NOBODY = 65534


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Make a system of a few programs that belongs to the sandboxes' user."""
    folder = Path(tempfile.mkdtemp(prefix="harbor-root-"))
    folder.chmod(0o755)
    for name in ("bin", "etc", "tmp", "usr/bin"):
        (folder / name).mkdir(parents=True)
    found = [path for path in map(shutil.which, PROGRAMS) if path is not None]
    listed = subprocess.check_output(["ldd", *found], text=True)
    for path in found:
        shutil.copy(path, folder / "bin")
    for path in set(re.findall(r"(/\S+) \(0x", listed)):
        (folder / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path[1:])
    if os.geteuid() == 0:
        subprocess.check_call(["chown", "-R", f"{NOBODY}:{NOBODY}", str(folder)])
    yield folder
    shutil.rmtree(folder)


def test_whole_system_is_played_and_left_as_it_was(
    tasks: Path, make_env: Callable[..., Any], root: Path
) -> None:
    write_task(tasks)
    env = make_env(options={"root": str(root)})
    before = digest_of(root)

    assert steps_of(env, seed=1)[-1].reward == 1.0
    env.reset(seed=1)
    step = env.step(write("ls /usr/bin; touch /usr/bin/new /etc/new && ls /etc", env.protocol))
    assert step[0]["text"] == "new\n[exit code 0]"
    assert env.step("Done.")[1] == 0.0

    assert digest_of(root) == before
