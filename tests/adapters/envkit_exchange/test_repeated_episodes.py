"""Commands that pool runs count an episode once, however often it is given."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.trajectories import example

from envkit.trajectory import REWARD_THRESHOLD, load, save
from envkit.trajectory.identity import SeenEpisodes
from envkit.viewer.run import read_run
from envkit_eval.paired import read_side
from envkit_exchange import solve_rates


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    episodes = [
        replace(
            example(number, metadata={"group": number // 4, REWARD_THRESHOLD: 1.0}),
            task={"name": f"task {number // 4}"},
            reward=float(number % 2),
            seed=number // 4,
        )
        for number in range(8)
    ]
    save(episodes, "a/trajectories.jsonl")
    save(
        [replace(one, episode_id=f"b{one.episode_id}") for one in episodes], "b/trajectories.jsonl"
    )


def _filtered(*runs: object) -> dict[str, Any]:
    done = run_envkit("filter", *runs, "--out=kept.jsonl", "--overwrite", "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def _twice(run: str, target: str) -> Path:
    """Write a file with every line of a run twice, as `cat` of two copies does."""
    Path(target).mkdir()
    text = Path(run, "trajectories.jsonl").read_text()
    Path(target, "trajectories.jsonl").write_text(text + text)
    shutil.copytree(Path(run, "images"), Path(target, "images"), dirs_exist_ok=True)
    return Path(target)


def test_filter_counts_an_episode_once_however_it_is_named() -> None:
    alone = _filtered("a")
    shutil.copytree("a", "copy")
    Path("link").symlink_to("a")
    _twice("a", "joined")

    for more in ("a", "./a", "a/trajectories.jsonl", "copy", "link", "joined"):
        pooled = _filtered("a", more)
        assert pooled["episodes"] == alone["episodes"] == 8
        assert pooled["solve_rate/interval_width"] == alone["solve_rate/interval_width"]
        assert pooled["episodes/left_out"]["repeated"] in (8, 16)
    (row, *_) = map(json.loads, Path("kept.jsonl").read_text().splitlines())
    assert row["episodes"] == 4
    said = run_envkit("filter", "a", "a", "--out=kept.jsonl", "--overwrite")
    assert "skipped 8 repeated episodes" in said.err


def test_other_episodes_of_the_same_tasks_count() -> None:
    both = _filtered("a", "b")

    assert (both["episodes"], both["tasks"]) == (16, 2)
    assert both["episodes/left_out"] == {}


def test_samples_that_two_dumps_number_alike_count_each() -> None:
    one = load("a")[0]
    turns = [replace(turn, response_text="another reply") for turn in one.turns]
    seen = SeenEpisodes()

    assert seen.add(one)
    assert seen.add(replace(one, turns=tuple(turns)))
    assert seen.add(replace(one, reward=0.5))
    for start in ("another task", None):
        assert seen.add(replace(one, initial_observation_hash=start))
    assert not seen.add(replace(one, metadata={"of": "a copy"}))


def test_episodes_without_an_id_count_each() -> None:
    seen, one = SeenEpisodes(), replace(load("a")[0], episode_id="")

    assert [seen.add(one), seen.add(one)] == [True, True]


def test_merged_run_repeats_its_shards() -> None:
    for shard in ("0/2", "1/2"):
        out = f"--out=s{shard[0]}"
        done = run_envkit(
            "rollout", "canary-v0", "-n", 8, "--policy", "oracle", "--quiet", "--shard", shard, out
        )
        assert done.code == 0, done.err
    assert run_envkit("merge", "s0", "s1", "--out=whole").code == 0

    rates = solve_rates(["whole", "s0", "s1"], threshold=0.0)

    assert sum(task.episodes for task in rates.tasks) == 8
    assert rates.left_out == {"repeated": 8}
    assert run_envkit("merge", "s0", "s0", "--out=again").code == 2


def test_one_file_with_an_episode_twice_counts_it_once() -> None:
    joined = _twice("a", "joined")

    for kind, out in (("sft", "rows.jsonl"), ("inspect", "log.eval")):
        told = run_envkit("export", joined, f"--format={kind}", f"--out={out}")
        assert told.code == 0, told.err
        assert "8" in told.out
    assert len(Path("rows.jsonl").read_text().splitlines()) == 8
    run = read_run(joined)
    assert len(run.rows) == 8
    assert run.figures()["episodes"] == 8
    assert run.notes == ["Left out: repeated episodes, from line 9 on."]
    assert run_envkit("report", joined).code == 0
    assert len(read_side(joined, by=()).episodes) == 8
    paired = run_envkit("eval", "a", "joined", "--paired", "--json")
    assert paired.code == 0, paired.err
    assert run_envkit("view", joined).code == 0
