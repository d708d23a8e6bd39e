"""`--resume --retry-faults`: faulted episodes play again, and no record is lost."""

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import GuessEnv
from fakes.command import run_envkit, start_envkit
from fakes.envs import EchoEnv, register_toys

from envkit.env import Turn
from envkit.errors import EnvFault, FaultKind
from envkit.folder_claim import FolderClaim
from envkit.rollout.run_folder import FAULTED_FILE, RunFolder
from envkit.trajectory import Trajectory, load, verify_file

DOWN, SLOW = Path("down"), Path("slow")


class OutageEnv(EchoEnv):
    """Faults for three of its six words while the file `down` exists."""

    def on_turn(self, response_text: str) -> Turn:
        if SLOW.exists() and self.task["word"] == "delta":
            time.sleep(3600)
        if DOWN.exists() and self.task["word"] in ("alpha", "gamma", "delta"):
            raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)
        return super().on_turn(response_text)


class LateFaultEnv(GuessEnv):
    """Faults for half of its numbers while the file `down` exists, after both roles have spoken."""

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        if self.turn == 2 and DOWN.exists() and self.task["number"] % 2:
            raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)
        return super().on_replies(replies)


def register_all() -> None:
    """Register every environment that the tests here play, also in its own process."""
    register_toys({"toy-outage-v0": OutageEnv, "toy-late-fault-v0": LateFaultEnv})


@pytest.fixture(autouse=True)
def _registered(toys_here: Path) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_all()


@pytest.fixture
def run(model: Path) -> Path:
    """A run in which some episodes of most groups faulted."""
    DOWN.touch()
    shown = run_envkit(
        "rollout", "toy-outage-v0", "--policy", "oracle", "--model", model,
        "-n", 12, "--out", "run", "-q",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    assert 0 < len(faulted(load("run"))) < 12
    return Path("run")


def faulted(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    return [one for one in trajectories if one.is_faulted]


def places(trajectories: Iterable[Trajectory]) -> list[tuple[Any, Any]]:
    return sorted((one.metadata["group"], one.metadata["member"]) for one in trajectories)


def lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []


def test_retry_plays_only_the_faulted_episodes_and_keeps_their_records(run: Path) -> None:
    before, file = lines(run / "trajectories.jsonl"), run / "trajectories.jsonl"
    bad = {one.episode_id for one in faulted(load(run))}
    DOWN.unlink()
    plain = run_envkit("rollout", "--resume", run, "-q")
    assert plain.code == 0, plain.err
    assert lines(file) == before  # not without the option

    shown = run_envkit("rollout", "--resume", run, "--retry-faults")
    assert shown.code == 0, shown.err
    assert f"{len(bad)} faulted ones play again" in shown.err
    after = load(run)
    assert places(after) == [(n, 0) for n in range(12)]
    assert not faulted(after)
    kept = [line for line in before if json.loads(line)["episode_id"] not in bad]
    assert lines(file)[: len(kept)] == kept
    assert lines(run / FAULTED_FILE) == [line for line in before if line not in kept]
    assert {one.episode_id for one in load(run / FAULTED_FILE)} == bad
    assert verify_file(run).is_sound
    assert verify_file(run / FAULTED_FILE).is_sound
    assert json.loads((run / "metrics.json").read_text())["episodes/faulted"] == 0


def test_episodes_that_fault_again_are_kept_once_per_attempt(run: Path, model: Path) -> None:
    first = {one.episode_id for one in faulted(load(run))}
    for attempt in (1, 2):
        assert run_envkit("rollout", "--resume", run, "--retry-faults", "-q").code == 0
        assert places(load(run)) == [(n, 0) for n in range(12)]
        assert len(faulted(load(run))) == len(first)
        assert len(lines(run / FAULTED_FILE)) == attempt * len(first)
    assert max(Counter(lines(run / FAULTED_FILE)).values()) == 1
    again = run_envkit(
        "rollout", "toy-outage-v0", "--policy", "oracle", "--model", model,
        "-n", 2, "--out", run, "--overwrite", "-q",
    )  # fmt: skip
    assert again.code in (0, 3)
    assert not (run / FAULTED_FILE).exists()


@pytest.mark.parametrize("call", ["replace_file", "keep_lines"])
def test_crash_while_records_move_loses_none(
    run: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lines(run / "trajectories.jsonl")
    bad = faulted(load(run))

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if call == "replace_file":
            patch.setattr("envkit.rollout.run_folder.replace_file", crash)
        else:
            patch.setattr("envkit.trajectory.storage.TrajectoryWriter.keep_lines", crash)
        with pytest.raises(KeyboardInterrupt):
            RunFolder.resume(run, retry_faults=True)
    assert lines(run / "trajectories.jsonl") == before
    DOWN.unlink()
    assert run_envkit("rollout", "--resume", run, "--retry-faults", "-q").code == 0
    assert places(load(run)) == [(n, 0) for n in range(12)]
    moved = load(run / FAULTED_FILE)
    assert [one.episode_id for one in moved] == [one.episode_id for one in bad]


@pytest.mark.slow
def test_killed_retry_is_completed_by_a_plain_resume(run: Path) -> None:
    bad = {one.episode_id for one in faulted(load(run))}
    good = {one.episode_id for one in load(run)} - bad
    hanging = sum(one.task["word"] == "delta" for one in load(run))
    assert 0 < hanging < len(bad)
    DOWN.unlink()
    SLOW.touch()
    before = f"from {__name__} import register_all\nregister_all()"
    process = start_envkit("rollout", "--resume", run, "--retry-faults", before=before)
    deadline = time.monotonic() + 120
    while len(lines(run / "trajectories.jsonl")) != 12 - hanging:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    SLOW.unlink()
    shown = run_envkit("rollout", "--resume", run, "-q")
    assert shown.code == 0, shown.err
    after = load(run)
    assert places(after) == [(n, 0) for n in range(12)]
    assert good < {one.episode_id for one in after}
    assert not faulted(after)
    assert {one.episode_id for one in load(run / FAULTED_FILE)} == bad


def test_siblings_of_a_faulted_episode_move_together(model: Path) -> None:
    DOWN.touch()
    run = Path("run")
    shown = run_envkit(
        "rollout", "toy-late-fault-v0", "--policy", "oracle", "--model",
        model, "-n", 8, "--out", run, "-q",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    bad = faulted(load(run))
    assert len(bad) > 1
    assert {one.metadata["siblings"] for one in bad} == {2}
    DOWN.unlink()
    assert run_envkit("rollout", "--resume", run, "--retry-faults", "-q").code == 0
    after = load(run)
    assert not faulted(after)
    assert Counter(places(after)) == {(n, 0): 2 for n in range(8)}
    assert len(load(run / FAULTED_FILE)) == len(bad)


def test_evaluation_counts_the_retried_episodes_instead(run: Path, model: Path) -> None:
    shutil.rmtree(run)
    begun = run_envkit(
        "eval", "toy-outage-v0", "toy-echo-v0", "--policy", "oracle", "--model", model, "-n", 12,
        "--out", "out", "-q",
    )  # fmt: skip
    assert begun.code == 1
    assert json.loads(Path("out/eval.json").read_text())["lines"][0]["faulted"] > 0
    DOWN.unlink()
    assert run_envkit("eval", "--resume", "out", "-q").code == 1
    shown = run_envkit("eval", "--resume", "out", "--retry-faults", "-q")
    assert shown.code == 0, shown.err
    line = json.loads(Path("out/eval.json").read_text())["lines"][0]
    assert (line["faulted"], line["episodes"], line["success"]["mean"]) == (0, 12, 1.0)
    assert not (Path("out/toy-echo-v0") / FAULTED_FILE).exists()


@pytest.mark.parametrize("command", ["rollout", "eval"])
def test_retry_without_a_run_to_resume_is_wrong_usage(command: str) -> None:
    shown = run_envkit(command, "toy-echo-v0", "--retry-faults")
    assert shown.code == 2
    assert "add --resume DIR" in " ".join(shown.err.replace("│", " ").split())


def test_run_that_another_process_writes_is_not_touched(run: Path) -> None:
    before = lines(run / "trajectories.jsonl")
    with FolderClaim(run, "trajectories.jsonl"):
        shown = run_envkit("rollout", "--resume", run, "--retry-faults", "-q")
    assert shown.code == 1
    assert lines(run / "trajectories.jsonl") == before
    assert not (run / FAULTED_FILE).exists()
