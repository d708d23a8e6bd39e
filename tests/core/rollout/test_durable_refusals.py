"""What cannot be begun or resumed is one clear error, and nothing is overwritten."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.hostile_runs import (
    PLAN,
    ROWS,
    RUN,
    RunEnv,
    bytes_of,
    check_refused,
    cut_after,
    edit_plan,
    no_file_longer_than,
    resume,
    rollout,
)

pytest_plugins = ["fakes.run_fixtures"]
pytestmark = pytest.mark.usefixtures("own_folder")


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


@pytest.mark.parametrize(
    ("key", "value"), [("seed", 8), ("group_size", 3), ("episodes", 2), ("env_id", "toy-echo-v0")]
)
def test_resume_refuses_a_run_whose_plan_was_changed(run: Path, key: str, value: Any) -> None:
    cut_after(RUN, 3)
    edit_plan(RUN, lambda name: name == key, value)
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


def test_an_out_on_a_full_disk_is_one_clear_error_before_the_first_episode() -> None:
    with no_file_longer_than(0):
        shown = rollout()
    assert shown.code == 1
    assert shown.err.startswith("envkit: error: ")
    assert shown.err.count("\n") == 1
    assert RunEnv.resets <= 8


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"limts": {"max_images": 4}}', "limits"),
        ('{"limits": {"max_image": 4}}', "max_images"),
        ('{"limits": 4}', "limits"),
        ('{"retries": {"backoff": {"inital_s": 1}}}', "initial_s"),
        ('{"on_fault": "ignore"}', "drop_group"),
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
