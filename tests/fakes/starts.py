"""Several real commands that start in one run folder at the same moment.

Each imports what it needs, and waits for the file `fire`, so that they start within milliseconds.
Their environment waits at a gate, the file `go` in the working directory. The command that has the
folder therefore still runs when the others try to get it, however slowly the machine starts them.
"""

import errno
import fcntl
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

from fakes.command import start_envkit
from fakes.envs import EchoEnv, register_missing

from envkit.env import Turn
from envkit.trajectory import Trajectory, load, verify_file

ENV_ID: Final = "toy-gated-v0"
EPISODES: Final = 24
GATE: Final = Path("go")
STARTED: Final = Path("started")
"""Files named after the processes that play."""
READY: Final = Path("ready")
"""Files named after the processes that are about to start."""
FIRE: Final = Path("fire")
_BEFORE: Final = "from fakes.starts import get_ready\nget_ready()"
NO_LOCKS: Final = "ENVKIT_TEST_NO_LOCKS"
"""Environment variable: processes find no locks, as on some network mounts."""
_PATIENCE_S: Final = 120.0


class GatedEnv(EchoEnv):
    """Echo; replies after the first `free` ones of a process wait until the gate is open."""

    free: ClassVar[int] = 0
    replies: ClassVar[int] = 0

    def on_turn(self, response_text: str) -> Turn:
        kind = type(self)
        kind.replies += 1
        (STARTED / str(os.getpid())).touch()
        if kind.replies > kind.free:
            wait_until(GATE.exists)
        return super().on_turn(response_text)


class HalfGatedEnv(GatedEnv):
    """The first episodes do not wait."""

    free: ClassVar[int] = 9


def register_gated() -> None:
    """Make both environments known; a second call changes nothing."""
    register_missing({ENV_ID: GatedEnv, f"half-{ENV_ID}": HalfGatedEnv})


def get_ready() -> None:
    """Import what a command needs, and wait until all of them may start."""
    import envkit.cli.run_rollout  # noqa: F401  # pyright: ignore[reportUnusedImport]

    if NO_LOCKS in os.environ:
        fcntl.flock = _without_locks
    register_gated()
    (READY / str(os.getpid())).touch()
    wait_until(FIRE.exists)


def _without_locks(descriptor: object, operation: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def fire(processes: Sequence["subprocess.Popen[str]"]) -> None:
    """Let the processes start, once all of them are ready."""
    wait_until(lambda: len(list(READY.iterdir())) == len(processes))
    FIRE.touch()


def finish(process: "subprocess.Popen[str]") -> None:
    """Let a single process start and play to its end."""
    GATE.touch()
    fire([process])
    _, errors = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition, for two minutes at most."""
    end = time.monotonic() + _PATIENCE_S
    while not is_true():
        if time.monotonic() > end:
            raise TimeoutError("the condition did not become true")
        time.sleep(0.01)


def start(
    *options: object, env_id: str = ENV_ID, command: str = "rollout"
) -> "subprocess.Popen[str]":
    """Start a command that plays the gated environment."""
    return start_envkit(
        command, env_id, "--policy", "oracle", "-n", EPISODES, "--concurrency", 4, "--quiet",
        *options, before=_BEFORE,
    )  # fmt: skip


def start_resume(folder: object) -> "subprocess.Popen[str]":
    """Start a command that completes a run."""
    return start_envkit("rollout", "--resume", folder, "--quiet", before=_BEFORE)


def close_gate() -> None:
    """Let the next commands wait for each other, and at the gate."""
    for file in (GATE, FIRE, *STARTED.glob("*"), *READY.glob("*")):
        file.unlink(missing_ok=True)
    STARTED.mkdir(exist_ok=True)
    READY.mkdir(exist_ok=True)


def killed_holder(folder: Path) -> list[str]:
    """Leave a run whose process was killed while it held the folder; return the stored ids."""
    close_gate()
    rows = folder / "trajectories.jsonl"
    with start("--out", folder, env_id=f"half-{ENV_ID}") as holder:
        fire([holder])
        wait_until(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 5)
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    stored = [one.episode_id for one in load(folder)]
    assert 5 <= len(stored) < EPISODES
    return stored


def one_wins(processes: Sequence["subprocess.Popen[str]"]) -> str:
    """Wait for all processes, of which one runs and the others refuse; return what they say."""
    refused: list[str] = []
    try:
        fire(processes)
        wait_until(lambda: sum(one.poll() is None for one in processes) <= 1)
        wait_until(lambda: any(STARTED.iterdir()) or None not in [p.poll() for p in processes])
        GATE.touch()
        for one in processes:
            _, errors = one.communicate(timeout=_PATIENCE_S)
            if one.returncode != 0:
                refused.append(errors)
                assert one.returncode == 1, errors
                lines = [one for one in errors.splitlines() if "has no locks (" not in one]
                assert len(lines) == 1, errors
                assert lines[0].startswith("envkit: error: "), errors
    finally:
        for one in processes:
            one.kill()
            one.communicate()
    assert len(refused) == len(processes) - 1, refused
    return "".join(refused)


def all_run(processes: Sequence["subprocess.Popen[str]"]) -> None:
    """Wait until all processes play at the same time, and then for their end."""
    fire(processes)
    try:
        wait_until(
            lambda: (
                len(list(STARTED.iterdir())) == len(processes)
                or any(one.poll() is not None for one in processes)
            )
        )
    finally:
        GATE.touch()
        said = [one.communicate(timeout=_PATIENCE_S)[1] for one in processes]
    assert [one.returncode for one in processes] == [0] * len(processes), said


def check_whole(folder: Path) -> list[Trajectory]:
    """What must hold of a run that is complete, whoever else wanted its folder."""
    stored = load(folder)
    episodes = Counter((one.metadata["group"], one.metadata["member"]) for one in stored)
    assert len(episodes) == len(stored) == EPISODES
    assert all(one.reward == 1.0 for one in stored)
    assert verify_file(folder).is_sound
    names = {path.name for path in folder.iterdir()}
    figures = {"metrics.json", "report.html", "digest.bin", "vocabulary.json"}
    assert names == {"run.json", "trajectories.jsonl", *figures}
    return list(stored)
