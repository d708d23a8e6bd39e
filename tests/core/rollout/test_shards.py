"""Shards of a run: together they play what one run plays, with the same groups, seeds and ids."""

import json
from collections import Counter
from pathlib import Path

import pytest
from fakes.command import run_envkit
from fakes.models import tiny_model_dir
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.rollout import RolloutConfig, Run, RunPlan, Shard, Stragglers, Tail
from envkit.trajectory import Trajectory, load

_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


pytestmark = pytest.mark.usefixtures("toys_here")


def play(*options: object, out: str) -> tuple[Trajectory, ...]:
    shown = run_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-q", "--seed", 3, "--out", out, *options,
    )  # fmt: skip
    assert shown.code == 0, shown.err
    return load(out)


def identity(one: Trajectory) -> tuple[object, ...]:
    place = one.metadata["group"], one.metadata["member"]
    return (*place, one.group_id, one.seed, str(one.task), one.initial_observation_hash)


def write_tasks(words: tuple[str, ...], file: str = "tasks.jsonl") -> str:
    Path(file).write_text("".join(json.dumps({"word": word}) + "\n" for word in words))
    return file


@given(total=st.integers(1, 200), count=st.integers(1, 40), size=st.integers(1, 8))
def test_every_episode_is_in_exactly_one_shard_and_groups_are_whole(
    total: int, count: int, size: int
) -> None:
    shards = [Shard(index, count) for index in range(count)]
    groups = [number for shard in shards for number in shard.groups(total)]
    assert sorted(groups) == list(range(total))
    sizes = [len(shard.groups(total)) * size for shard in shards]
    assert max(sizes) - min(sizes) in (0, size)
    assert [Shard.parse(str(shard)) for shard in shards] == shards


@pytest.mark.parametrize("text", ["3/3", "0/0", "-1/3", "1", "/", "1/", "/4", "a/b", "1/3/5"])
def test_text_that_names_no_shard_is_wrong_usage(text: str) -> None:
    with pytest.raises(ConfigurationError, match="a shard is I/N"):
        Shard.parse(text)
    shown = run_envkit("rollout", "toy-echo-v0", "--policy", "oracle", "--shard", text)
    assert shown.code == 2
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("-n", 10, "--group", 2),
        ("-n", 7),
        ("--tasks", "tasks.jsonl"),
        ("--tasks", "tasks.jsonl", "--group", 3),
        ("--tasks", "tasks.jsonl", "-n", 8, "--group", 2),
    ],
)
def test_shards_play_the_groups_of_one_run(options: tuple[object, ...]) -> None:
    write_tasks(_WORDS)
    whole = play(*options, out="whole")
    parts = [one for n in range(3) for one in play(*options, "--shard", f"{n}/3", out=f"part-{n}")]
    assert sorted(map(identity, parts)) == sorted(map(identity, whole))
    assert len({one.episode_id for one in parts}) == len(whole)
    for number in range(3):
        groups = {one.metadata["group"] for one in load(f"part-{number}")}
        assert {group % 3 for group in groups} == {number}
        assert json.loads(Path(f"part-{number}/run.json").read_text())["settings"]["shard"] == (
            f"{number}/3"
        )
    assert "shard" not in json.loads(Path("whole/run.json").read_text())["settings"]


def test_shard_is_resumed_as_the_same_shard() -> None:
    options = ("-n", 12, "--group", 2, "--shard", "1/3")
    before = {identity(one) for one in play(*options, out="part")}
    rows = Path("part/trajectories.jsonl")
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:1]))
    assert run_envkit("rollout", "--resume", "part", "-q").code == 0
    assert {identity(one) for one in load("part")} == before
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:1]))
    assert {identity(one) for one in play(*options, "--resume-or-start", out="part")} == before
    finished = run_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "--seed", 3, "--out", "part", *options, "--resume-or-start",
    )  # fmt: skip
    assert "all 4 episodes are done" in finished.err
    other = run_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "--seed", 3, "--out", "part", "-n", 12, "--group", 2, "--shard", "2/3", "--resume-or-start",
    )  # fmt: skip
    assert other.code == 2
    assert "shard is '1/3', got '2/3'" in other.err


def test_shards_without_a_folder_have_one_each() -> None:
    for number in range(2):
        shown = run_envkit(
            "rollout", "toy-echo-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
            "-q", "-n", 4, "--shard", f"{number}/2",
        )  # fmt: skip
        assert shown.code == 0
    folders = {path.name for path in Path("runs").iterdir()}
    assert folders == {f"toy-echo-v0-oracle-seed0-shard{n}of2" for n in range(2)}


def test_no_group_id_has_two_tasks_though_a_task_file_was_split_by_hand() -> None:
    write_tasks(_WORDS[:3], "first.jsonl")
    write_tasks((*_WORDS[3:], _WORDS[0]), "second.jsonl")
    played = [
        *play("--tasks", "first.jsonl", "--group", 2, out="first"),
        *play("--tasks", "second.jsonl", "--group", 2, out="second"),
    ]
    tasks = {(one.group_id, one.task["word"]) for one in played}
    assert len(tasks) == len({group for group, _ in tasks}) == 6
    assert set(Counter(one.group_id for one in played).values()) == {2}


def test_lines_of_a_task_file_that_are_equal_are_groups_of_their_own() -> None:
    write_tasks(("alpha", "alpha"))
    assert len({one.group_id for one in play("--tasks", "tasks.jsonl", out="run")}) == 2


def test_more_shards_than_groups_is_wrong_usage() -> None:
    shown = run_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "-n", 6, "--group", 2, "--shard", "0/4"
    )
    assert shown.code == 2
    assert "got 4 shards of 3 groups" in shown.err


def test_run_in_python_refuses_what_a_shard_cannot_play() -> None:
    class Player:
        config = RolloutConfig(tail=Tail(then=Stragglers.DROP))

    plan = RunPlan(episodes=4, shard=Shard(1, 2))
    with pytest.raises(ConfigurationError, match="decides over the whole run"):
        Run("toy-echo-v0", Player(), plan)  # pyright: ignore[reportArgumentType]  # no more is read
