"""`--resume-or-start`: one command starts a run, completes it, and says that it is finished."""

import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.command import Outcome, run_envkit, start_envkit
from fakes.hostile_runs import (
    PLAN,
    ROWS,
    RUN,
    RUN_ID,
    RunEnv,
    Sent,
    bytes_of,
    check_refused,
    check_whole,
    cut_after,
    resume,
    rollout,
)
from fakes.models import tiny_model_dir
from fakes.starts import check_whole as check_gated
from fakes.starts import close_gate, one_wins, register_gated, start

from envkit.rollout.run_claim import RunClaim
from envkit.trajectory import load

pytest_plugins = ["fakes.run_fixtures"]
pytestmark = pytest.mark.usefixtures("own_folder")
OPTION = "--resume-or-start"
TASKS = Path("tasks.jsonl")


def again(*more: object) -> Outcome:
    """Run the one command line of these tests."""
    return rollout(OPTION, *more)


def test_the_same_command_starts_completes_and_then_finds_the_run_finished() -> None:
    assert again().code == 0
    kept = cut_after(RUN, 5, torn=40)
    plan = PLAN.read_bytes()
    assert again().code == 0
    check_whole()
    assert ROWS.read_bytes().startswith(kept)
    assert PLAN.read_bytes() == plan

    before = bytes_of(RUN)
    RunEnv.arm(None)
    shown = again()
    assert (shown.code, shown.out) == (0, "")
    assert "run is finished: all 12 episodes are done" in shown.err
    assert RunEnv.resets == 0
    assert bytes_of(RUN) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_same_command_completes_a_run_that_a_signal_stopped(number: int) -> None:
    RunEnv.arm(Sent(number), at=14)
    assert again().code == 128 + number
    RunEnv.arm(None)
    assert again().code == 0
    check_whole()


def test_a_run_that_another_command_started_is_resumed_and_the_reverse(run: Path) -> None:
    cut_after(run, 3)
    assert again().code == 0
    check_whole()
    cut_after(run, 4)
    assert resume().code == 0
    check_whole()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--seed", 8, "config.seed is 7, got 8"),
        ("--group", 4, "group_size is 2, got 4"),
        ("-n", 14, "episodes is 12, got 14"),
        ("--set", "limits.max_turns=2", "config.limits.max_turns is None, got 2"),
        ("--temperature", 0.5, "config.sampling.temperature is None, got 0.5"),
        ("--env-kwargs", "level=1", "cannot be built"),
        ("--policy", "envkit.rollout:nothing", "engine.policy is 'oracle', got 'envkit.rollout:"),
        ("--wrap", "blank-image", "wrap is [], got ['blank-image']"),
        ("--on-fault", "retry", "config.on_fault is 'mask', got 'retry'"),
        ("--tasks", TASKS, "tasks.sha256 is None, got '"),
    ],
)
def test_another_setting_is_wrong_usage_and_named(
    run: Path, option: str, value: object, says: str
) -> None:
    TASKS.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(6)))
    cut_after(run, 5)
    before = bytes_of(run)
    shown = again(option, value)
    check_refused(shown, run, before, says)
    assert shown.code == 2


def test_options_that_change_no_episode_may_differ(run: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    plan = PLAN.read_bytes()
    cut_after(run, 5)
    assert again("--concurrency", 2, "--sink=parquet=rows.parquet").code == 0
    check_whole()
    assert parquet.read_table("rows.parquet").num_rows == 12
    assert PLAN.read_bytes() == plan


def test_tasks_may_move_but_not_change() -> None:
    def play(tasks: Path, first: int) -> Outcome:
        tasks.write_text("".join(json.dumps({"n": first + n}) + "\n" for n in range(4)))
        return run_envkit(
            "rollout", RUN_ID, "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
            "--tasks", tasks, "--out", RUN, "-q", OPTION,
        )  # fmt: skip

    assert play(TASKS, 0).code == 0
    cut_after(RUN, 2)
    TASKS.unlink()
    assert play(Path("moved.jsonl"), 0).code == 0
    assert len(load(RUN)) == 4
    shown = play(Path("moved.jsonl"), 1)
    assert shown.code == 2
    assert "tasks.sha256 is " in shown.err


def _leave_other_file() -> None:
    (RUN / "job.log").write_text("started")


@pytest.mark.parametrize("leave", [lambda: None, _leave_other_file, ROWS.touch])
def test_a_folder_without_a_run_gets_one(leave: Callable[[], None]) -> None:
    RUN.mkdir()
    leave()
    assert again().code == 0
    check_whole()


def test_trajectories_that_no_run_wrote_are_not_touched(run: Path) -> None:
    PLAN.unlink()
    check_refused(again(), run, bytes_of(run), "it has no run.json")


def test_a_run_that_another_process_plays_is_not_touched(run: Path) -> None:
    cut_after(run, 5)
    before = bytes_of(run)
    with RunClaim(RUN):
        check_refused(again(), run, before, "is being written by another writer")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "add --out"),
        (("--out", "run", "--overwrite"), "drop one"),
        (("--resume", "run"), "drop"),
        (("--out", "run", "--retry-faults"), "add --resume DIR"),
    ],
)
def test_option_that_cannot_be_followed_is_wrong_usage(options: tuple[str, ...], says: str) -> None:
    shown = run_envkit("rollout", RUN_ID, "--policy", "oracle", OPTION, *options)
    assert shown.code == 2
    assert says in " ".join(shown.err.replace("│", " ").split())
    assert not RUN.exists()


def test_a_run_whose_episodes_all_faulted_keeps_its_exit_code() -> None:
    def fail() -> None:
        RunEnv.arm(fail)
        raise OSError("the backend is gone")

    RunEnv.arm(fail)
    for _ in range(2):
        assert again("--set", "retries.max_env_retries_per_turn=0").code == 3


def test_a_finished_run_without_its_report_gets_one(run: Path) -> None:
    rows = ROWS.read_bytes()
    (run / "report.html").unlink()
    assert again().code == 0
    assert (run / "report.html").exists()
    assert ROWS.read_bytes() == rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_same_command_completes_a_run_after_kills_at_random_moments(seed: int) -> None:
    draw = random.Random(seed)
    before = "from fakes.hostile_runs import register_run_env\nregister_run_env()"
    stored: set[str] = set()
    code, kills = -1, 0
    while code != 0:
        process = start_envkit(
            "rollout", RUN_ID, "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
            "-n", 400, "--group", 2, "--concurrency", 4, "--out", RUN, "--quiet", OPTION,
            before=before,
        )  # fmt: skip
        goal = len(stored) + draw.randrange(1, 90)
        while process.poll() is None and kills < 40:
            time.sleep(draw.random() / 20)
            is_early = not ROWS.exists() and draw.random() < 0.02
            if is_early or (ROWS.exists() and ROWS.read_bytes().count(b"\n") >= goal):
                process.send_signal(draw.choice([signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM]))
                kills += 1
                break
        _, said = process.communicate(timeout=120)
        code = process.returncode
        assert code in (0, -9, -10, -15, 138, 143), said
        if ROWS.exists():
            whole = ROWS.read_bytes().rpartition(b"\n")[0].splitlines()
            now = {json.loads(line)["episode_id"] for line in whole}
            assert stored <= now | aborted_ids()
            stored = now
    assert kills
    check_whole(400)


def aborted_ids() -> set[str]:
    """Return the episodes that were set apart to be continued."""
    file = RUN / "unfinished.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    return {json.loads(line)["episode_id"] for line in lines}


@pytest.mark.slow
def test_commands_that_start_together_leave_the_run_to_one() -> None:
    register_gated()
    close_gate()
    said = one_wins([start("--out", RUN, OPTION) for _ in range(3)])
    assert said.count("is being written by another writer") == 2
    check_gated(RUN)
