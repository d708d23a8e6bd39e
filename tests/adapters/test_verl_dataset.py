"""Dataset rows for verl, and the package where verl is not installed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.envs import register_toys
from pyarrow import parquet

import envkit_verl
from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.rollout import EpisodeRequest
from envkit_verl import build_dataset, dataset_rows, write_dataset


@pytest.fixture(autouse=True)
def _toys() -> None:
    register_toys()


def test_verl_dataset_takes_every_task_of_a_finite_source(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    assert build_dataset("toy-echo-v0", path) == 6
    rows = parquet.read_table(path).to_pylist()
    assert [row["extra_info"] for row in rows] == [
        {"index": index, "split": "train"} for index in range(6)
    ]
    requests = [EpisodeRequest.from_column(row["envkit"]) for row in rows]
    assert [dict(request.task or {}) for request in requests][:2] == [
        {"word": "alpha"},
        {"word": "beta"},
    ]
    assert len({request.seed for request in requests}) == 6
    assert {row["agent_name"] for row in rows} == {"envkit"}
    assert {row["data_source"] for row in rows} == {"toy-echo-v0"}
    assert rows[1]["prompt"] == [
        {"role": "system", "content": "Answer with the word only."},
        {"role": "user", "content": "Repeat this word: beta"},
    ]


def test_verl_dataset_is_a_function_of_seed_and_split(tmp_path: Path) -> None:
    def columns(name: str, **options: object) -> list[str]:
        path = tmp_path / f"{name}.parquet"
        build_dataset("toy-dots-v0", path, size=3, **options)  # type: ignore[arg-type]
        return [row["envkit"] for row in parquet.read_table(path).to_pylist()]

    first = columns("a")
    assert first == columns("b")
    assert not set(first) & set(columns("c", split="val"))
    assert not set(first) & set(columns("d", seed=1))


def test_verl_dataset_writes_answers_and_given_tasks(tmp_path: Path) -> None:
    tasks = [{"word": "x", "answer": 3}, {"word": "y"}]
    path = tmp_path / "given.parquet"
    build_dataset("toy-echo-v0", path, tasks=tasks, data_source="mine", agent_name="mine")
    rows = parquet.read_table(path).to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["3", ""]
    assert [(row["data_source"], row["agent_name"]) for row in rows] == [("mine", "mine")] * 2
    assert json.loads(rows[0]["envkit"])["task"] == tasks[0]


def test_verl_dataset_prompt_holds_no_media_mark() -> None:
    """verl splits texts at these marks and then misses a picture."""
    request = EpisodeRequest(env_id="toy-echo-v0", task={"word": "<image> or <video>"})
    (row,) = dataset_rows([request])
    assert row["prompt"][1]["content"] == "Repeat this word: image or video"


def test_verl_dataset_can_leave_the_environment_alone() -> None:
    (row,) = dataset_rows([EpisodeRequest(env_id="toy-nothing-v9")], with_prompts=False)
    assert row["prompt"][0]["role"] == "user"


def test_verl_dataset_refuses_bad_sizes_and_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="endless tasks"):
        build_dataset("toy-dots-v0", tmp_path / "a.parquet")
    with pytest.raises(ConfigurationError, match="at least 1"):
        build_dataset("toy-dots-v0", tmp_path / "a.parquet", size=0)
    with pytest.raises(ConfigurationError, match="at most the number of tasks, got 9 for 6"):
        build_dataset("toy-echo-v0", tmp_path / "a.parquet", size=9)
    with pytest.raises(ConfigurationError, match=r"ending in \.parquet"):
        build_dataset("toy-echo-v0", tmp_path / "a.json")
    with pytest.raises(ConfigurationError, match="got 0 rows"):
        write_dataset([], tmp_path / "a.parquet")


def test_verl_package_imports_without_verl_and_torch() -> None:
    code = "import sys, envkit_verl; print(sorted({'verl', 'torch', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed")
def test_verl_package_says_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match="pip install 'verl"):
        _ = envkit_verl.EnvAgentLoop
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = envkit_verl.Nothing  # pyright: ignore[reportAttributeAccessIssue]
