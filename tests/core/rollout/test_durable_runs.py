"""A run outlives its process: what was finished stays, and `--resume` plays what is missing.

Runs that were killed are made in this process: a whole run is cut back to what `kill -9` leaves."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.command import Outcome, run_envkit
from fakes.hostile_runs import (
    EPISODES,
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
    edit_plan,
    register_dialogue,
    resume,
    rollout,
)
from fakes.models import tiny_model_dir

from envkit.trajectory import StopReason, load, verify_file

pytest_plugins = ["fakes.run_fixtures"]
pytestmark = pytest.mark.usefixtures("own_folder")


def test_the_plan_exists_before_the_first_reply() -> None:
    seen: list[Any] = []
    RunEnv.arm(lambda: seen.append(json.loads(PLAN.read_text()) if PLAN.exists() else None))
    assert rollout().code == 0
    check_whole()
    (plan,) = seen
    assert isinstance(plan, dict)
    text = json.dumps(plan)
    assert RUN_ID in text
    assert str(EPISODES) in text


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "torn"), [(0, 0), (0, 500), (1, 1), (5, 500)])
def test_resume_plays_exactly_what_a_killed_run_lacks(run: Path, lines: int, torn: int) -> None:
    whole = {(t.metadata["group"], t.metadata["member"]): t for t in load(RUN)}
    kept = cut_after(RUN, lines, torn=torn)
    RunEnv.arm(None)
    shown = resume()
    assert shown.code == 0, shown.err
    assert ROWS.read_bytes().startswith(kept)
    for one in check_whole():
        first = whole[one.metadata["group"], one.metadata["member"]]
        assert one.seed == first.seed
        assert one.train_ids() == first.train_ids()
        assert one.images() == first.images()
    assert RunEnv.resets == EPISODES - lines
    for name in ("metrics.json", "report.html"):
        assert (RUN / name).stat().st_size > 0
    assert json.loads((RUN / "metrics.json").read_text())["episodes"] == EPISODES


@pytest.mark.slow
def test_resume_plays_images_again_that_were_lost_with_the_line(run: Path) -> None:
    cut_after(RUN, 3)
    needed = {image.sha256 for one in load(RUN) for image in one.images()}
    for file in (RUN / "images").iterdir():
        if file.stem not in needed:
            file.unlink()
    assert resume().code == 0
    check_whole()


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT,),
        (signal.SIGTERM,),
        (signal.SIGUSR1,),
        pytest.param((signal.SIGUSR2,), marks=pytest.mark.slow),
        pytest.param((signal.SIGHUP,), marks=pytest.mark.slow),
        (signal.SIGINT, signal.SIGINT),
    ],
    ids=["int", "term", "usr1", "usr2", "hup", "int_twice"],
)
def test_a_signal_stores_what_is_finished_and_what_is_not(numbers: tuple[int, ...]) -> None:
    sent = Sent(*numbers)
    RunEnv.arm(sent, at=14)
    shown = rollout()
    assert sent.is_caught, f"nobody catches {numbers}"
    assert shown.code == 128 + numbers[0]
    stored = load(RUN)
    assert set(RunEnv.finished) <= {one.episode_id for one in stored}
    aborted = {one.episode_id: one for one in stored if one.stop_reason is StopReason.ABORTED}
    if len(numbers) == 1:
        assert aborted
    assert all(one.reward is None for one in aborted.values())
    assert verify_file(RUN).is_sound
    RunEnv.arm(None)
    assert resume().code == 0
    done = {one.episode_id: one for one in check_whole()}
    assert set(aborted) <= set(done)  # continued, not played again
    for name, one in aborted.items():
        assert done[name].train_ids()[: len(one.train_ids())] == one.train_ids()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_wait_for_an_environment_that_hangs(number: int) -> None:
    released, returned = threading.Event(), threading.Event()
    sent = Sent(number)

    def hang() -> None:
        sent()
        if sent.is_caught:
            time.sleep(0.3)
            sent()
        released.wait(120)
        returned.set()

    RunEnv.arm(hang, at=14)
    try:
        shown = rollout()
        assert sent.is_caught
        assert not returned.is_set(), "the run waited for the call that hangs"
    finally:
        released.set()
    assert shown.code not in (0, 1, 2)
    assert set(RunEnv.finished) <= {one.episode_id for one in load(RUN)}
    RunEnv.arm(None)
    assert resume().code == 0
    check_whole()


def test_a_file_that_a_power_cut_padded_with_zeros_is_repaired(run: Path) -> None:
    kept = cut_after(RUN, 5, torn=200)
    ROWS.write_bytes(ROWS.read_bytes() + bytes(4096))
    assert resume().code == 0
    assert ROWS.read_bytes().startswith(kept)
    check_whole()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["empty", "cut", "deleted"])
def test_an_image_that_a_power_cut_damaged_is_noticed(run: Path, damage: str) -> None:
    cut_after(RUN, 5)
    image = load(RUN)[0].images()[1]
    file = RUN / "images" / f"{image.sha256}.png"
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:40] if damage == "cut" else b"")
    shown = resume()
    if shown.code == 0:  # played again; otherwise the error names the damaged file
        check_whole()
    else:
        assert shown.code == 1
        assert image.sha256[:12] in shown.err + shown.out


@pytest.mark.slow
def test_resume_completes_a_dialogue_of_which_one_side_was_stored() -> None:
    register_dialogue()
    shown = run_envkit(
        "rollout", "toy-dialogue-v0", "--policy", "oracle", "--model", tiny_model_dir("llama"),
        "-n", 6, "--concurrency", 2, "--out", "run", "--quiet",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    kept = cut_after(RUN, 5, torn=100)
    assert len(kept.splitlines()) == 5
    assert resume().code == 0
    stored = load(RUN)
    roles = Counter((one.metadata["group"], one.metadata["role"]) for one in stored)
    assert set(roles.values()) == {1}
    assert len(roles) == 12
    assert {one.reward for one in stored} == {0.5, 1.0}
    assert verify_file(RUN).is_sound


def check_accounted(shown: Outcome, finished: list[str]) -> None:
    """Every finished episode is in the file, in another one, or named in the message."""
    kept = b"\n".join(bytes_of(Path()).values()).decode("utf-8", "replace") + shown.err
    assert [name for name in finished if name not in kept] == []


def test_a_deleted_run_file_stops_the_run_and_loses_nothing_in_memory() -> None:
    RunEnv.arm(ROWS.unlink, at=14)
    shown = rollout(episodes=80)
    assert shown.code == 1
    assert "trajectories.jsonl" in shown.err
    assert RunEnv.resets <= RunEnv.resets_before + 12
    check_accounted(shown, RunEnv.finished[RunEnv.finished_before :])


# ---- what cannot be begun or resumed is one clear error, and nothing is overwritten


def _empty() -> None:
    for path in (*RUN.rglob("*.*"), RUN / "images"):
        path.rmdir() if path.is_dir() else path.unlink()


def _foreign() -> None:
    _empty()
    (RUN / "notes.txt").write_text("mine")


def _without_plan() -> None:
    PLAN.unlink(missing_ok=True)


def _plan_of(content: str) -> Callable[[], None]:
    def make() -> None:
        cut_after(RUN, 3)
        PLAN.write_text(content)

    return make


@pytest.mark.parametrize(
    "make",
    [
        _empty,
        _foreign,
        _without_plan,
        _plan_of(""),
        _plan_of("{"),
        _plan_of("{}"),
        _plan_of("[]"),
        _plan_of("null"),
        _plan_of('{"episodes": "many"}'),
        _plan_of("[" * 100_000),
        _plan_of("\x00" * 4096),
    ],
    ids=["empty", "foreign", "no_plan", "plan_empty", "plan_cut", "plan_bare", "plan_list",
         "plan_null", "plan_types", "plan_deep", "plan_zeros"],
)  # fmt: skip
def test_resume_refuses_a_directory_that_is_not_a_run(run: Path, make: Callable[[], None]) -> None:
    make()
    before = bytes_of(RUN)
    check_refused(resume(), RUN, before, "run")


def test_resume_refuses_what_is_not_a_directory() -> None:
    Path("file").write_text("mine")
    before = bytes_of(Path())
    for name in ("file", "nowhere", "file/run"):
        check_refused(resume(name), Path(), before)
    for name in ("a\x00b", ""):
        assert resume(name).code in (1, 2)
    assert bytes_of(Path()) == before


def test_resume_refuses_a_run_of_another_version(run: Path) -> None:
    cut_after(RUN, 3)
    edit_plan(RUN, lambda key: "version" in key or "schema" in key, 999)
    check_refused(resume(), RUN, bytes_of(RUN), "999")


def test_resume_refuses_a_run_whose_plan_was_changed(run: Path) -> None:
    cut_after(RUN, 3)
    edit_plan(RUN, lambda name: name == "seed", 8)
    check_refused(resume(), RUN, bytes_of(RUN))


@pytest.mark.parametrize(
    "more", [("-n", 99), ("--seed", 8), ("--group", 1), ("--overwrite",), ("--out", "other")]
)
def test_resume_refuses_options_that_the_plan_has_already(
    run: Path, more: tuple[object, ...]
) -> None:
    cut_after(RUN, 3)
    before = bytes_of(RUN)
    shown = resume(RUN, *more)
    assert shown.code in (1, 2)
    assert shown.err.strip()
    assert bytes_of(RUN) == before
    assert not Path("other").exists()


def test_resume_refuses_a_run_with_a_broken_line_in_the_middle(run: Path) -> None:
    cut_after(RUN, 6)
    rows = ROWS.read_bytes().splitlines(keepends=True)
    rows[2] = rows[2][:200] + b"\n"
    ROWS.write_bytes(b"".join(rows))
    check_refused(resume(), RUN, bytes_of(RUN), "line 3")


@pytest.mark.parametrize("line", [0, 2])
def test_resume_refuses_a_run_with_a_line_stored_twice(run: Path, line: int) -> None:
    cut_after(RUN, 3)
    rows = ROWS.read_bytes().splitlines(keepends=True)
    ROWS.write_bytes(b"".join([*rows, rows[line]]))
    check_refused(resume(), RUN, bytes_of(RUN), "twice")


def test_resume_refuses_the_lines_of_another_run(run: Path) -> None:
    assert rollout("--seed", 8, out="other").code == 0
    cut_after(RUN, 2)
    ROWS.write_bytes(ROWS.read_bytes() + (Path("other") / ROWS.name).read_bytes())
    check_refused(resume(), RUN, bytes_of(RUN))


def test_a_new_run_does_not_overwrite_one_that_can_be_resumed(run: Path) -> None:
    cut_after(RUN, 0)  # killed before the first episode was stored; the plan exists
    before = bytes_of(RUN)
    shown = rollout()
    check_refused(shown, RUN, before)
    assert "--resume" in shown.err or "--overwrite" in shown.err


@pytest.mark.parametrize("out", ["/proc/run", "/dev/null/run", "file/run"])
@pytest.mark.slow
def test_an_out_that_cannot_be_written_is_one_clear_error(out: str) -> None:
    Path("file").write_text("mine")
    before = bytes_of(Path())
    shown = rollout(out=out)
    check_refused(shown, Path(), before, out)
    assert RunEnv.resets == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"retries": {"backoff": {"inital_s": 1}}}', "initial_s"),
        ('{"isolation": "docker"}', "process"),
        ("[1, 2]", "settings.json"),
        ("{", "settings.json"),
        ("", "settings.json"),
    ],
)
def test_a_configuration_file_with_a_mistake_is_one_clear_error(content: str, says: str) -> None:
    Path("settings.json").write_text(content)
    before = bytes_of(Path())
    shown = rollout("--config", "settings.json")
    check_refused(shown, Path(), before, says)
    assert RunEnv.resets == 0


def test_a_missing_configuration_file_is_one_clear_error() -> None:
    shown = rollout("--config", "nowhere.json")
    assert shown.code in (1, 2)
    assert "nowhere.json" in shown.err
    assert not RUN.exists()
