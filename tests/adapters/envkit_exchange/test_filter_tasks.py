"""`envkit filter` and `envkit rollout --tasks`: solve rates, also over episodes given twice."""

import json
import math
import os
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.trajectories import example
from hypothesis import given
from hypothesis import strategies as st

from envkit.cli.run_plan import task_hash
from envkit.errors import ConfigurationError, DatasetError, FaultKind
from envkit.metrics import EpisodeFacts, aggregate
from envkit.metrics.intervals import Interval, wilson_interval
from envkit.rollout import EpisodeRequest, read_requests
from envkit.trajectory import (
    REWARD_THRESHOLD,
    FaultPlace,
    FaultRecord,
    StopReason,
    Trajectory,
    load,
    save,
)
from envkit.trajectory.identity import SeenEpisodes, identity
from envkit.viewer.run import read_run
from envkit_eval.paired import read_side
from envkit_exchange import solve_rates
from envkit_exchange.solve_rates import BUCKETS


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)


def episode(number: int, task: str, reward: float | None, **changes: Any) -> Trajectory:
    metadata = {"group": changes.pop("group", 0), REWARD_THRESHOLD: 1.0}
    made = example(number, metadata=metadata, task={"name": task}, seed=5)
    if reward is None:
        fault = FaultRecord(where=FaultPlace.STEP, kind=FaultKind.TIMEOUT, message="late")
        changes = {"fault": fault, "stop_reason": StopReason.ENV_FAULT, **changes}
    return replace(made, reward=reward, **changes)


def rows(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def ends(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


@pytest.mark.parametrize(
    ("solved", "episodes", "low", "high"),
    [  # binom.confint(..., method = "wilson") of R's package binom
        (8, 10, 0.4901625, 0.9433178),
        (5, 10, 0.2365931, 0.7634069),
        (0, 10, 0.0, 0.2775328),
    ],
)
def test_wilson_gives_published_intervals(
    solved: int, episodes: int, low: float, high: float
) -> None:
    assert ends(wilson_interval(solved, episodes)) == pytest.approx((low, high), abs=1e-6)
    mirrored = wilson_interval(episodes - solved, episodes)
    assert ends(mirrored) == pytest.approx((1 - high, 1 - low), abs=1e-6)


@given(st.integers(1, 500), st.data())
def test_wilson_bounds_are_where_the_score_test_rejects(episodes: int, data: st.DataObject) -> None:
    solved = data.draw(st.integers(0, episodes))
    rate = solved / episodes
    for bound in ends(wilson_interval(solved, episodes)):
        if 0 < bound < 1:
            score = abs(rate - bound) / math.sqrt(bound * (1 - bound) / episodes)
            assert score == pytest.approx(1.959964, rel=1e-4)
        else:
            assert bound == rate


def test_faulted_and_aborted_episodes_are_not_failures() -> None:
    episodes = [
        episode(0, "b", 1.0, group=1),
        episode(1, "b", None, group=1),
        episode(2, "a", 0.0),
        episode(3, "a", 1.0),
        episode(4, "a", -0.4, stop_reason=StopReason.ENV_TRUNCATED),
        episode(5, "c", None, group=2),
        replace(episode(6, "c", 0.0, group=2), stop_reason=StopReason.ABORTED, reward=None),
    ]
    save(episodes, "run.jsonl")
    rates = solve_rates(["run.jsonl"])

    found = {(task.request.task or {})["name"]: task for task in rates.tasks}
    assert list(found) == ["a", "b", "c"]  # the run's order, not that of the ends
    assert (found["a"].solved, found["a"].episodes) == (1, 3)
    assert (found["b"].solved, found["b"].episodes, found["b"].rate) == (1, 1, 1.0)
    assert found["c"].episodes == 0
    assert ends(found["c"].interval) == (0.0, 1.0)
    assert rates.left_out == {"faulted": 2, "aborted": 1}
    assert [task.request.task for task in rates.kept(0, 1)] == [{"name": "a"}]
    summary = rates.summary(0, 1)
    assert [summary["histogram"][name] for name in BUCKETS] == [0, 0, 1, 0, 0, 1]
    assert (summary["tasks"], summary["tasks/unscored"], summary["tasks/high"]) == (3, 1, 1)


def test_runs_are_pooled_and_bounds_leave_themselves_out() -> None:
    save([episode(0, "a", 1.0), episode(1, "b", 1.0, group=1)], "one.jsonl")
    save([episode(2, "b", 0.0, group=7), episode(3, "c", 0.0, group=8)], "two.jsonl")
    rates = solve_rates(["one.jsonl", "two.jsonl"])

    assert [task.rate for task in rates.tasks] == [1.0, 0.5, 0.0]
    assert len(rates.kept(0.5, 1)) == 0
    assert len(rates.kept(0.49, 0.51)) == 1
    assert len(rates.kept(-1, 2)) == 3


def test_solved_is_the_same_in_every_command_and_figure() -> None:
    """The threshold in force decides; `--reward-threshold` counts with another."""
    rewards = [0.0, 0.25, 1.0]
    save([episode(n, "a", rewards[n]) for n in range(3)], "run.jsonl")
    metrics = aggregate([EpisodeFacts.of(one) for one in load("run.jsonl")])
    assert metrics["success/rate"] == pytest.approx(1 / 3)
    option = "--reward-threshold"
    for bound, solved in ((), 1), ((option, 0.25), 2), ((option, 0), 3), ((option, 1.5), 0):
        shown = run_envkit(
            "filter",
            "run.jsonl",
            "--above",
            -1,
            "--below",
            2,
            "--out",
            "kept.jsonl",
            "--overwrite",
            *bound,
        )
        assert shown.code == 0, shown.err
        assert rows("kept.jsonl")[0]["solved"] == solved


def test_episodes_without_a_declared_success_are_left_out() -> None:
    """Files from before the threshold was recorded, pooled with newer ones."""
    save([replace(episode(0, "a", 1.0), metadata={"group": 0})], "old.jsonl")
    save([episode(1, "a", 0.0), episode(2, "b", 1.0, group=1)], "new.jsonl")
    rates = solve_rates(["old.jsonl", "new.jsonl"])
    assert [(task.solved, task.episodes) for task in rates.tasks] == [(0, 1), (1, 1)]
    assert rates.left_out == {"without a defined success": 1}
    pooled = solve_rates(["old.jsonl", "new.jsonl"], threshold=1.0)
    assert [(task.solved, task.episodes) for task in pooled.tasks] == [(1, 2), (1, 1)]


def test_tasks_without_data_are_distinguished_by_their_seeds() -> None:
    save(
        [replace(episode(n, "", float(n % 2)), task={}, seed=n // 2) for n in range(4)], "run.jsonl"
    )
    rates = solve_rates(["run.jsonl"])

    assert [(task.request.seed, task.rate) for task in rates.tasks] == [(0, 0.5), (1, 0.5)]
    assert "task" not in json.loads(rates.tasks[0].row()["envkit"])


@pytest.mark.slow
def test_a_policy_filters_the_tasks_that_it_plays() -> None:
    """The whole way: tasks out, played, filtered, played again; counts start again here."""
    run_envkit("export", "geo3k-v0", "--format", "jsonl", "--rows", 8, "--out", "tasks.jsonl")
    asked = rows("tasks.jsonl")
    played = run_envkit(
        "rollout", "geo3k-v0", "--policy", "noisy-oracle", "--tasks", "tasks.jsonl", "--group", 3,
        "--env-kwargs", "max_turns=2", "--out", "run", "--quiet",
    )  # fmt: skip
    assert played.code == 0, played.err
    earned: dict[str, list[float]] = defaultdict(list)
    for one in load("run"):
        wanted = json.loads(asked[one.metadata["group"]]["envkit"])
        assert (one.task, one.seed) == (wanted["task"], wanted["seed"])
        earned[json.dumps(one.task, sort_keys=True)].append(one.reward or 0.0)
    assert [len(values) for values in earned.values()] == [3] * 8
    outcome = run_envkit("filter", "run", "--out", "kept.jsonl", "--quiet")
    between = {task for task, values in earned.items() if 0 < sum(values) < 3}
    kept = rows("kept.jsonl")
    requests = [json.loads(row["envkit"]) for row in kept]
    assert {json.dumps(request["task"], sort_keys=True) for request in requests} == between
    assert 0 < len(between) < 8
    assert f"kept.jsonl: {len(between)} of 8 tasks" in outcome.out
    assert all(request["env_kwargs"] == {"max_turns": 2} for request in requests)
    assert all(0 < row["low"] < row["solve_rate"] < row["high"] < 1 for row in kept)
    again = run_envkit(
        "rollout", "geo3k-v0", "--policy", "oracle", "--tasks", "kept.jsonl", "--out", "again",
        "--quiet",
    )  # fmt: skip
    assert again.code == 0, again.err
    assert {json.dumps(one.task, sort_keys=True) for one in load("again")} == between
    settings = json.loads(Path("again/run.json").read_text())["settings"]
    assert settings["config"]["env_kwargs"] == {"max_turns": 2}


@pytest.mark.slow
def test_a_resumed_run_plays_the_tasks_of_its_file() -> None:
    words = [{"word": f"word{number}"} for number in range(4)]
    Path("mine.jsonl").write_text("".join(json.dumps(word) + "\n" for word in words))
    start = ("rollout", "canary-v0", "--policy", "oracle", "--quiet")
    run_envkit("export", "canary-v0", "--format", "jsonl", "--rows", 4, "--out", "tasks.jsonl")
    run_envkit(*start, "--tasks", "tasks.jsonl", "--out", "run")
    whole = {one.metadata["group"]: one.task for one in load("run")}
    assert len(whole) == 4
    file = Path("run/trajectories.jsonl")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))

    resumed = run_envkit("rollout", "--resume", "run", "--quiet")
    assert resumed.code == 0, resumed.err
    assert {one.metadata["group"]: one.task for one in load("run")} == whole

    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    with Path("tasks.jsonl").open("a") as stream:
        stream.write('{"word": "new"}\n')
    refused = run_envkit("rollout", "--resume", "run", "--quiet")
    assert refused.code == 2
    assert "changed after the run started" in refused.err


def test_task_files_are_read_with_their_requests() -> None:
    request = {"env_id": "canary-v0", "task": {"word": "a"}, "seed": 3}
    lines = [{"envkit": json.dumps(request)}, {"envkit": {**request, "seed": 4}}, {"word": "b"}]
    Path("tasks.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    found = read_requests("tasks.jsonl", "canary-v0")

    assert [one.seed for one in found] == [3, 4, None]
    assert [one.task for one in found] == [{"word": "a"}, {"word": "a"}, {"word": "b"}]


def test_task_list_reads_a_pipe_as_it_reads_a_file() -> None:
    """A shell's `--tasks <(shuf tasks.jsonl)` can be read once."""
    Path("tasks.jsonl").write_text('{"word": "\\ud800"}\n{"word": "b"}\n')
    os.mkfifo("pipe")
    writer = Thread(target=lambda: Path("pipe").write_bytes(Path("tasks.jsonl").read_bytes()))
    writer.start()
    found: list[tuple[EpisodeRequest, ...]] = []
    reader = Thread(target=lambda: found.append(read_requests("pipe", "canary-v0")))
    reader.daemon = True  # it would wait for a second writer
    reader.start()
    reader.join(timeout=120)
    writer.join(timeout=120)

    (piped,) = found
    stored = read_requests("tasks.jsonl", "canary-v0")
    assert (piped, task_hash(piped)) == (stored, task_hash(stored))


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ({"envkit": {"env_id": "geo3k-v0"}}, ConfigurationError, "task 2 must be a task of canary"),
        ({"envkit": {"env_kwargs": {"length": 1}}}, ConfigurationError, "the same env_kwargs"),
        ({"envkit": "{"}, DatasetError, "task 2: column 'envkit' must be a JSON object"),
        ({"envkit": {"taks": {}}}, DatasetError, "got \\['taks'\\]"),
        ([], DatasetError, "line 2 must be a task"),
    ],
)
def test_task_files_that_do_not_fit_are_refused(
    line: object, error: type[Exception], message: str
) -> None:
    Path("tasks.jsonl").write_text(f"{{}}\n{json.dumps(line)}\n")
    with pytest.raises(error, match=message):
        read_requests("tasks.jsonl", "canary-v0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "--out", "a.jsonl"), "there is no trajectory file 'nowhere'"),
        (("run.jsonl", "--out", "a.txt"), "--out must end in .jsonl, which"),
        (("run.jsonl", "--out", "a.jsonl", "--above", 1), "--above must be less than --below"),
        (("run.jsonl", "--out", "a.jsonl"), "no task has a solve rate between 0 and 1"),
        (("run.jsonl", "other.jsonl", "--out", "a.jsonl"), "got the environment"),
        (("roles.jsonl", "--out", "a.jsonl"), "episodes with one agent"),
        (("open.jsonl", "--out", "a.jsonl"), "success is undefined in 1 of 1 episodes"),
    ],
)
def test_wrong_use_of_filter_ends_in_one_line(arguments: tuple[Any, ...], message: str) -> None:
    save([episode(0, "a", 1.0)], "run.jsonl")
    save([replace(episode(1, "a", 1.0), env_id="other-v0")], "other.jsonl")
    save([replace(episode(2, "a", 1.0), metadata={"role": "white"})], "roles.jsonl")
    save([replace(episode(3, "a", 1.0), metadata={"group": 0})], "open.jsonl")
    outcome = run_envkit("filter", *arguments, "--quiet")

    assert outcome.code == (1 if "nowhere" in arguments or message.startswith("no task") else 2)
    assert message in " ".join(outcome.err.split())
    assert not list(Path().glob("a.*"))


def test_more_groups_than_tasks_are_refused() -> None:
    Path("mine.jsonl").write_text('{"word": "a"}\n')
    outcome = run_envkit(
        "rollout", "canary-v0", "--policy", "oracle", "--tasks", "mine.jsonl", "-n", 2
    )

    assert outcome.code == 2
    assert "every group needs a task" in " ".join(outcome.err.split())


@pytest.fixture
def two_runs() -> None:
    """Write two runs of the same tasks into the folder: a and b."""
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


@pytest.mark.usefixtures("two_runs")
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


@pytest.mark.usefixtures("two_runs")
def test_other_episodes_of_the_same_tasks_count() -> None:
    both = _filtered("a", "b")

    assert (both["episodes"], both["tasks"]) == (16, 2)
    assert both["episodes/left_out"] == {}


@pytest.mark.usefixtures("two_runs")
def test_samples_that_two_dumps_number_alike_count_each() -> None:
    one = load("a")[0]
    turns = [replace(turn, response_text="another reply") for turn in one.turns]
    seen = SeenEpisodes()

    assert seen.add(identity(one))
    assert seen.add(identity(replace(one, turns=tuple(turns))))
    assert seen.add(identity(replace(one, reward=0.5)))
    for start in ("another task", None):
        assert seen.add(identity(replace(one, initial_observation_hash=start)))
    assert not seen.add(identity(replace(one, metadata={"of": "a copy"})))


@pytest.mark.usefixtures("two_runs")
def test_episodes_without_an_id_count_each() -> None:
    seen, one = SeenEpisodes(), replace(load("a")[0], episode_id="")

    assert [seen.add(identity(one)), seen.add(identity(one))] == [True, True]


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


@pytest.mark.usefixtures("two_runs")
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
