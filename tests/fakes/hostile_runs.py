"""An environment that does something to its own run while it runs, and looks at run directories."""

import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from fakes.agents import GuessEnv
from fakes.command import Outcome, run_envkit
from fakes.envs import DotsEnv, register_missing
from fakes.models import tiny_model_dir

from envkit.env import Capabilities, Turn
from envkit.tasks import Task
from envkit.trajectory import StopReason, Trajectory, load, verify_file

RUN_ID = "toy-run-v0"
EPISODES = 12
RUN = Path("run")
PLAN = RUN / "run.json"
ROWS = RUN / "trajectories.jsonl"
"""The run of a test, in the working directory, which is the test's own."""


class RunEnv(DotsEnv):
    """Three images; before some reply that does not end its episode, a function is called once.

    So one episode at least is under way then, however threads take turns.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        replay_safe=True, snapshot=True, deterministic=True
    )
    plans: ClassVar[list[Callable[[], None]]] = []
    """What is still to be called: one function, or nothing."""
    plan_at: ClassVar[int] = 0
    """Number of the reply, counted over all episodes of the process."""
    replies: ClassVar[int] = 0
    resets: ClassVar[int] = 0
    resets_before: ClassVar[int] = 0
    """Resets when the plan was called."""
    finished: ClassVar[list[str]] = []
    """Episode ids, in the order that they ended."""
    finished_before: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__(rounds=3, size=28)

    @classmethod
    def arm(cls, plan: Callable[[], None] | None, *, at: int = 0) -> None:
        """Call `plan` before reply number `at`; None only resets the counts."""
        cls.plans, cls.plan_at = [] if plan is None else [plan], at
        cls.replies = cls.resets = cls.resets_before = cls.finished_before = 0
        cls.finished = []

    def on_reset(self, task: Task) -> Turn:
        type(self).resets += 1
        return super().on_reset(task)

    def on_turn(self, response_text: str) -> Turn:
        kind = type(self)
        kind.replies += 1
        if kind.plans and kind.replies > kind.plan_at and self.turn < self.rounds - 1:
            plan = kind.plans.pop()
            kind.resets_before, kind.finished_before = kind.resets, len(kind.finished)
            plan()
        turn = super().on_turn(response_text)
        if turn.done and self.step_key is not None:
            kind.finished.append(self.step_key.episode_id.partition("~")[0])
        return turn


def register_run_env() -> None:
    """Make the environment known; a second call changes nothing."""
    register_missing({RUN_ID: RunEnv})


def register_dialogue() -> None:
    """Make an environment with two agents known; a second call changes nothing."""
    register_missing({"toy-dialogue-v0": GuessEnv})


class Sent:
    """Sends a signal to this process, unless nobody would catch it."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers
        self.is_caught = True

    def __call__(self) -> None:
        for number in self._numbers:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
                self.is_caught = False
                return
            os.kill(os.getpid(), number)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def cut_after(folder: Path, lines: int, *, torn: int = 0) -> bytes:
    """Leave a run as `kill -9` would: some whole lines, and the beginning of the next.

    Returns:
        The whole lines that are left.
    """
    file = folder / "trajectories.jsonl"
    rows = file.read_bytes().splitlines(keepends=True)
    kept = b"".join(rows[:lines])
    file.write_bytes(kept + (rows[lines][:torn] if torn else b""))
    for name in ("metrics.json", "report.html"):
        (folder / name).unlink(missing_ok=True)
    return kept


def change_key(value: Any, is_wanted: Callable[[str], bool], new: Any) -> int:
    """Set every key that is wanted, however deep; return how many there were."""
    if isinstance(value, list):
        return sum(change_key(entry, is_wanted, new) for entry in value)
    if not isinstance(value, dict):
        return 0
    count = 0
    for key in value:
        if is_wanted(key):
            value[key] = new
            count += 1
        else:
            count += change_key(value[key], is_wanted, new)
    return count


def edit_plan(folder: Path, is_wanted: Callable[[str], bool], new: Any) -> None:
    """Change the plan of a run behind its back."""
    file = folder / "run.json"
    data = json.loads(file.read_text())
    assert change_key(data, is_wanted, new), f"run.json has no such key: {data}"
    file.write_text(json.dumps(data))


def rollout(*more: object, episodes: int = EPISODES, out: str = "run") -> Outcome:
    """Play a run in this process."""
    return run_envkit(
        "rollout", RUN_ID, "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", episodes, "--group", 2, "--concurrency", 4, "--seed", 7, "--out", out, "--quiet",
        *more,
    )  # fmt: skip


def resume(folder: object = RUN, *more: object) -> Outcome:
    """Resume a run in this process."""
    return run_envkit("rollout", "--resume", folder, "--quiet", *more)


def places(trajectories: list[Trajectory]) -> Counter[tuple[int, int]]:
    """Count the episodes by their place in the run."""
    return Counter((one.metadata["group"], one.metadata["member"]) for one in trajectories)


def check_whole(episodes: int = EPISODES) -> list[Trajectory]:
    """What must hold of a run that is done, however often it was resumed."""
    done = [one for one in load(RUN) if one.stop_reason is not StopReason.ABORTED]
    assert len(done) == episodes
    assert set(places(done).values()) == {1}
    assert len({one.episode_id for one in done}) == episodes
    assert all(one.reward == 1.0 for one in done)
    assert all(len(one.images()) == 3 for one in done)
    report = verify_file(RUN)
    assert report.is_sound, str(report)
    return done


def check_refused(shown: Outcome, folder: Path, before: dict[str, bytes], says: str = "") -> None:
    """What must hold of a command that ends before it does anything."""
    assert shown.code in (1, 2), (shown.code, shown.out, shown.err)
    assert shown.err.startswith("envkit: error: ")
    assert shown.err.count("\n") == 1
    assert says in shown.err
    assert bytes_of(folder) == before


@contextmanager
def no_file_longer_than(size: int) -> Generator[None]:
    """Make the system refuse to write more, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
