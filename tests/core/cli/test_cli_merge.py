"""`envkit merge`: shards become the run that one command would have played."""

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.command import Outcome, run_envkit
from fakes.hostile_runs import (
    RUN_ID,
    RunEnv,
    Sent,
    bytes_of,
    check_refused,
    register_dialogue,
)
from fakes.matrix import share
from fakes.models import tiny_model_dir

from envkit.errors import EnvFault, FaultKind
from envkit.files import LineFile
from envkit.rollout.run_settings import read_settings
from envkit.text import counted
from envkit.trajectory import load, verify_file

pytest_plugins = ["fakes.run_fixtures"]
pytestmark = pytest.mark.usefixtures("own_folder")
PARTS = [Path(f"part-{number}") for number in range(3)]
OUT = Path("merged")
_RANDOM = ("_seconds", "episode_id", "rollout_id", "links", "seal", "sanity")
"""Ends of the keys that two plays of one plan do not share: times, ids, and what ids decide."""


def play(out: Path, *options: object, env_id: str = RUN_ID) -> Outcome:
    return run_envkit(
        "rollout", env_id, "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", 14, "--group", 2, "--concurrency", 4, "--seed", 7, "--out", out, "-q", *options,
    )  # fmt: skip


def play_shards(*options: object, env_id: str = RUN_ID) -> None:
    for number, part in enumerate(PARTS):
        shown = play(part, "--shard", f"{number}/3", *options, env_id=env_id)
        assert shown.code == 0, shown.err


def merge(*options: object, parts: Iterable[Path] = PARTS) -> Outcome:
    return run_envkit("merge", *parts, "--out", OUT, *options)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play the shards once; tests copy them."""
    folder = tmp_path_factory.mktemp("played")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        from fakes.hostile_runs import register_run_env

        register_run_env()
        RunEnv.arm(None)
        play_shards()
    return folder


@pytest.fixture
def shards(played: Path) -> list[Path]:
    for part in PARTS:
        shutil.copytree(played / part, part)
    return PARTS


def settled(value: Any) -> Any:
    """Return a record without times and random ids."""
    if isinstance(value, list):
        return [settled(entry) for entry in value]
    if isinstance(value, dict):
        return {
            key: settled(entry) for key, entry in value.items() if not str(key).endswith(_RANDOM)
        }
    return value


def records(folder: Path) -> list[Any]:
    rows = map(json.loads, (folder / "trajectories.jsonl").read_bytes().splitlines())
    return [settled(row) for row in rows]


def by_plan(rows: list[Any]) -> list[Any]:
    """Order records as the plan does, and roles by name."""
    return sorted(
        rows, key=lambda row: [str(row["metadata"].get(n)) for n in ("group", "member", "role")]
    )


def write_tasks() -> Path:
    file = Path("tasks.jsonl")
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(7)))
    return file


@pytest.mark.parametrize("kind", share(["seeds", "tasks", "dialogue"], of=3))
def test_merged_shards_equal_the_run_of_one_command(kind: str) -> None:
    register_dialogue()
    env_id = "toy-dialogue-v0" if kind == "dialogue" else RUN_ID
    options = ("--tasks", write_tasks()) if kind == "tasks" else ()
    assert play(Path("whole"), *options, env_id=env_id).code == 0
    play_shards(*options, env_id=env_id)
    shown = merge()
    assert shown.code == 0, shown.err
    assert "all sound" in shown.out
    assert by_plan(records(OUT)) == by_plan(records(Path("whole")))
    groups = [row["metadata"]["group"] for row in records(OUT)]
    assert groups == sorted(groups)
    assert read_settings(OUT) == read_settings(Path("whole"))
    if (OUT / "images").exists():
        assert bytes_of(OUT / "images") == bytes_of(Path("whole/images"))
    names = {path.name for path in Path("whole").iterdir()} - {"digest.bin"}  # of what was played
    assert {path.name for path in OUT.iterdir()} == names


def test_lines_are_copied_as_they_are_and_shards_stay(shards: list[Path]) -> None:
    before = [bytes_of(part) for part in shards]
    shown = merge("--json", parts=[shards[2], shards[0], shards[1]])
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["is_sound"]
    assert json.loads(shown.out)["metrics"]["episodes"] == 14
    lines = (OUT / "trajectories.jsonl").read_bytes().splitlines()
    theirs = [(part / "trajectories.jsonl").read_bytes().splitlines() for part in shards]
    assert sorted(lines) == sorted(line for part in theirs for line in part)
    assert [bytes_of(part) for part in shards] == before


def test_merged_run_works_with_the_commands_that_read_runs(shards: list[Path]) -> None:
    pytest.importorskip("pyarrow")  # of one of the commands
    assert merge().code == 0
    rows = (OUT / "trajectories.jsonl").read_bytes()
    for command in (
        ("verify", OUT),
        ("report", OUT),
        ("view", OUT),
        ("filter", OUT, "--out", "kept.jsonl", "--below", 1.1, "--reward-threshold", 0.5),
        ("export", OUT, "--format", "parquet", "--out", "rows.parquet"),
        ("rollout", "--resume", OUT, "-q"),
    ):
        RunEnv.arm(None)
        shown = run_envkit(*command)
        assert shown.code == 0, (command, shown.err)
    assert RunEnv.resets == 0
    assert (OUT / "trajectories.jsonl").read_bytes() == rows
    assert len(Path("kept.jsonl").read_text().splitlines()) == 7
    assert play(OUT, "--resume-or-start").code == 0


def stop(part: Path, shard: str) -> None:
    """Play a shard again until a signal stops it in the middle of an episode."""

    def send() -> None:
        Sent(15)()
        time.sleep(1)  # until the signal is handled, so that this episode does not go on

    shutil.rmtree(part)
    RunEnv.arm(send, at=5)
    assert play(part, "--shard", shard).code == 143
    RunEnv.arm(None)


def test_missing_episodes_are_named_and_complete_shards_merge(shards: list[Path]) -> None:
    stop(shards[1], "1/3")
    lacking = 4 - len({row["episode_id"] for row in lines(shards[1]) if is_ended(row)})
    assert lacking
    shown = merge()
    check_refused(shown, OUT, {}, f"part-1 lacks {counted(lacking, 'episode')}: complete it with")
    assert shown.code == 1
    assert not OUT.exists()
    assert run_envkit("rollout", "--resume", shards[1], "-q").code == 0
    assert merge().code == 0
    assert len(load(OUT)) == 14


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "trajectories.jsonl").read_bytes().splitlines()]


def is_ended(row: Any) -> bool:
    return row["stop_reason"] != "aborted"


def test_absent_shard_is_named_and_a_partial_run_is_completed(shards: list[Path]) -> None:
    check_refused(merge(parts=shards[::2]), OUT, {}, "not given: 1/3")
    assert merge("--partial", parts=shards[::2]).code == 0
    kept = (OUT / "trajectories.jsonl").read_bytes()
    assert run_envkit("rollout", "--resume", OUT, "-q").code == 0
    assert (OUT / "trajectories.jsonl").read_bytes().startswith(kept)
    places = {(one.metadata["group"], one.metadata["member"]) for one in load(OUT)}
    assert len(places) == len(load(OUT)) == 14
    assert verify_file(OUT).is_sound


def test_partial_merge_leaves_unfinished_episodes_to_be_played(shards: list[Path]) -> None:
    stop(shards[0], "0/3")
    assert not all(map(is_ended, lines(shards[0])))
    assert merge("--partial").code == 0
    assert all(map(is_ended, lines(OUT)))
    assert run_envkit("rollout", "--resume", OUT, "-q").code == 0
    assert len(load(OUT)) == 14


def test_attempts_that_faulted_are_kept() -> None:
    def fail() -> None:
        raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)

    for number, part in enumerate(PARTS):
        RunEnv.arm(fail, at=2)
        assert play(part, "--shard", f"{number}/3").code == 0
    faulted = [one.episode_id for part in PARTS for one in load(part) if one.is_faulted]
    assert len(faulted) == 3
    for part in PARTS:
        assert run_envkit("rollout", "--resume", part, "--retry-faults", "-q").code == 0
    assert merge().code == 0
    assert [one.episode_id for one in load(OUT / "faulted.jsonl")] == faulted
    assert not any(one.is_faulted for one in load(OUT))


def _other_seed(parts: list[Path]) -> None:
    play(parts[1], "--shard", "1/3", "--seed", 8, "--overwrite")


def _other_count(parts: list[Path]) -> None:
    play(parts[1], "--shard", "1/4", "--overwrite")


def _same_shard(parts: list[Path]) -> None:
    shutil.rmtree(parts[1])
    shutil.copytree(parts[0], parts[1])


def _whole_run(parts: list[Path]) -> None:
    play(parts[1], "--overwrite")


def _no_run(parts: list[Path]) -> None:
    (parts[1] / "run.json").unlink()


def _episode_twice(parts: list[Path]) -> None:
    rows = parts[1] / "trajectories.jsonl"
    rows.write_bytes(rows.read_bytes() + rows.read_bytes().splitlines(keepends=True)[0])


def _episode_of_another_shard(parts: list[Path]) -> None:
    shutil.copy(parts[0] / "trajectories.jsonl", parts[1])


def _changed_ledger(parts: list[Path]) -> None:
    rows = parts[1] / "trajectories.jsonl"
    row = json.loads(rows.read_bytes().splitlines()[0])
    row["segments"][0]["train_ids"][0] += 1
    rest = rows.read_bytes().split(b"\n", 1)[1]
    rows.write_bytes(json.dumps(row).encode() + b"\n" + rest)


def _changed_image(parts: list[Path]) -> None:
    first, second = sorted((parts[1] / "images").iterdir())[:2]
    shutil.copy(first, second)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (_other_seed, 2, "part-1 are not shards of the same run: config.seed is 7, got 8"),
        (_other_count, 2, "it is shard 1/4, not one of 3"),
        (_same_shard, 2, "part-0 and part-1 are both shard 0/3"),
        (_whole_run, 2, "it is shard 0/1, not one of 3"),
        (_no_run, 1, "part-1 is not a run folder"),
        (_episode_twice, 1, "part-1/trajectories.jsonl holds an episode twice"),
        (_episode_of_another_shard, 1, "part-1 is shard 1/3, but holds group 0"),
        (_changed_ledger, 1, "part-1/trajectories.jsonl is damaged, line 1"),
        (_changed_image, 1, "part-1/trajectories.jsonl is damaged, line"),
    ],
)
def test_folders_that_are_not_the_shards_of_one_run_are_refused(
    shards: list[Path], change: Any, code: int, says: str
) -> None:
    change(shards)
    before = [bytes_of(part) for part in shards]
    shown = merge()
    check_refused(shown, OUT, {}, says)
    assert shown.code == code
    assert not OUT.exists()
    assert [bytes_of(part) for part in shards] == before


def test_folder_that_holds_a_run_is_replaced_only_on_request(shards: list[Path]) -> None:
    assert play(OUT, "-n", 2).code == 0
    before = bytes_of(OUT)
    check_refused(merge(), OUT, before, "already holds a run")
    assert merge("--overwrite").code == 0
    assert len(load(OUT)) == 14


@pytest.mark.parametrize("option", [(), ("--overwrite",)])
def test_shard_is_never_the_target(shards: list[Path], option: tuple[str, ...]) -> None:
    before = bytes_of(shards[0])
    shown = run_envkit("merge", *shards, "--out", f"./{shards[0]}/../{shards[0]}", *option)
    check_refused(shown, shards[0], before, "--out must be another folder than the shards")


def test_merge_that_was_killed_is_repeated_with_overwrite(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = LineFile.append, 0

    def die(file: LineFile, line: bytes) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        real(file, line)

    with monkeypatch.context() as patch:
        patch.setattr(LineFile, "append", die)
        assert merge().code == 130
    assert merge().code == 1
    assert merge("--overwrite").code == 0
    assert len(load(OUT)) == 14
