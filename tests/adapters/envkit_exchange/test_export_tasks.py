"""Tasks as dataset rows: what each trainer's loader needs, seeds, splits, files."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.envs import EchoEnv, register_toys

from envkit.errors import ConfigurationError, DatasetError, StorageError
from envkit.images import Image
from envkit.messages import message, text_of
from envkit.rollout import ENVKIT_COLUMN, EpisodeRequest, read_requests
from envkit_exchange import (
    ROW_BUILDERS,
    TaskDraw,
    TaskExample,
    TaskFormat,
    export_tasks,
    skyrl_row,
    slime_row,
    trl_row,
    verl_row,
)

SYSTEM_PROMPT = "You read codes off pictures. Reply with the code only."
ALL = pytest.mark.parametrize("kind", list(TaskFormat))


@pytest.fixture(autouse=True)
def _toys() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_toys()


def drawn(env_id: str = "canary-v0", count: int | None = 3, **options: Any) -> list[TaskExample]:
    with TaskDraw(env_id, count=count, **options) as draw:
        return list(draw)


def request_of(row: dict[str, Any]) -> EpisodeRequest:
    """The request, wherever the trainer hands it to its rollout."""
    return EpisodeRequest.from_column(row.get("metadata", row)[ENVKIT_COLUMN])


@ALL
def test_every_row_carries_a_request_that_plays_the_prompt_it_shows(kind: TaskFormat) -> None:
    for example in drawn():
        row = ROW_BUILDERS[kind](example)
        request = request_of(row)
        env = request.factory()()
        observation = env.reset(seed=request.seed, options={"task": request.task})[0]

        assert request == example.request
        assert observation["images"] == example.images
        if kind is TaskFormat.TRL:
            assert row["prompt"][0]["content"] == row[ENVKIT_COLUMN]
        else:
            assert row["prompt"][0] == {"role": "system", "content": SYSTEM_PROMPT}
            assert row["prompt"][1]["content"] == f"[image]\n{observation['text']}"


@ALL
def test_rows_without_images_hold_no_bytes_and_no_marks(kind: TaskFormat) -> None:
    row = ROW_BUILDERS[kind](drawn()[0])

    assert "images" not in row
    assert "<image>" not in json.dumps(row)


def test_slime_rows_mark_the_places_of_their_images() -> None:
    example = drawn()[0]
    row = slime_row(example, with_images=True)

    assert row["prompt"][1]["content"].startswith("<image>Which code")
    assert [Image.from_data_uri(uri) for uri in row["images"]] == list(example.images)
    assert row["label"] == ""


def test_verl_rows_have_every_column_that_verl_reads() -> None:
    example = drawn(split="test")[1]
    row = verl_row(example, with_images=True)

    assert row["data_source"] == "canary-v0"
    assert row["agent_name"] == "envkit"
    assert row["reward_model"]["ground_truth"] == ""
    assert row["extra_info"] == {"index": 1, "split": "test"}
    assert row["prompt"][1]["content"].count("<image>") == len(row["images"]) == 1


def test_skyrl_rows_carry_images_as_addresses_in_their_parts() -> None:
    example = drawn()[0]
    parts = skyrl_row(example, with_images=True)["prompt"][1]["content"]

    assert Image.from_data_uri(parts[0]["image_url"]["url"]) == example.images[0]
    assert parts[1]["type"] == "text"


def test_trl_prompts_differ_from_row_to_row() -> None:
    """A rollout function gets prompts and nothing else, and finds the request again by them."""
    prompts = [str(trl_row(example)["prompt"]) for example in drawn(count=20)]

    assert len(set(prompts)) == 20


def test_trl_rows_leave_the_places_of_images_to_trl() -> None:
    row = trl_row(drawn()[0], with_images=True)

    assert row["prompt"][1]["content"].startswith("Which code")
    assert len(row["images"]) == 1


@pytest.mark.parametrize("build", [slime_row, verl_row])
def test_marks_that_an_environment_writes_are_not_taken_for_images(build: Any) -> None:
    """The readers would count them and fail: more placeholders than images."""
    example = TaskExample(
        index=0,
        split="train",
        request=EpisodeRequest(env_id="x-v0", seed=1),
        messages=(message("user", "Draw an <image> or a <video>."),),
    )

    assert build(example, with_images=True)["prompt"][0]["content"] == "Draw an image or a video."


def test_an_answer_that_the_task_states_becomes_the_label() -> None:
    request = EpisodeRequest(env_id="x-v0", task={"question": "1+1?", "answer": 2})
    example = TaskExample(
        index=0, split="train", request=request, messages=(message("user", "1+1?"),)
    )

    assert slime_row(example)["label"] == "2"
    assert verl_row(example)["reward_model"]["ground_truth"] == "2"


def test_an_observation_without_text_still_gives_a_prompt() -> None:
    example = TaskExample(
        index=0, split="train", request=EpisodeRequest(env_id="x-v0"),
        messages=(message("user", ""),),
    )  # fmt: skip

    assert slime_row(example)["prompt"][0]["content"]


def test_the_same_seed_draws_the_same_tasks_and_another_one_others() -> None:
    first, again, other = drawn(seed=5), drawn(seed=5), drawn(seed=6)

    assert [e.request for e in first] == [e.request for e in again]
    assert {e.request.seed for e in first}.isdisjoint(e.request.seed for e in other)
    assert len({e.request.to_column() for e in first}) == 3


def test_splits_of_an_endless_source_share_no_seed() -> None:
    train = {e.request.seed for e in drawn(count=20)}
    test = {e.request.seed for e in drawn(count=20, split="test")}

    assert train.isdisjoint(test)


def test_more_rows_leave_the_first_ones_as_they_are() -> None:
    assert drawn(count=2) == drawn(count=4)[:2]
    assert drawn(count=2, start=1) == drawn(count=3)[1:]


def test_a_split_reaches_an_environment_that_accepts_one() -> None:
    (example,) = drawn("geo3k-v0", split="test", count=1)

    assert example.request.env_kwargs == {"split": "test"}


def test_a_finite_source_gives_each_task_once_in_order() -> None:
    words = [e.request.task for e in drawn("toy-echo-v0", count=None)]

    assert words[:2] == [{"word": "alpha"}, {"word": "beta"}]
    assert len(words) == 6


def test_a_split_that_would_hold_the_same_tasks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="every split would contain the same"):
        drawn("toy-echo-v0", split="test")

    assert drawn("toy-echo-v0", split="test", start=4, count=2)[0].request.task == {
        "word": "épsilon"
    }


def test_tasks_of_ones_own_are_played_instead_of_the_environments(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"word": "mine", "answer": 3}\n\n{"word": "yours"}\n')
    examples = drawn(
        "toy-echo-v0", count=None, tasks=read_requests(path, "toy-echo-v0"), split="test"
    )

    assert [e.request.task for e in examples] == [{"word": "mine", "answer": 3}, {"word": "yours"}]
    assert text_of(examples[1].messages[-1]) == "Repeat this word: yours"
    with pytest.raises(ConfigurationError, match="has 2 tasks, got a request for 3"):
        drawn("toy-echo-v0", tasks=read_requests(path, "toy-echo-v0"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "at least one task"),
        (b'{"word": "a"}\n["b"]\n', r"line 2 must be a task, a JSON object, got \[\"b\"\]"),
        (b'{"word": \n', "line 1 is not valid JSON"),
        (b"\xff", "cannot read the tasks in"),
        (None, "cannot read the tasks in"),
    ],
)
def test_files_without_tasks_are_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "tasks.jsonl"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(DatasetError, match=said):
        read_requests(path, "toy-echo-v0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"env_id": "canary-v0", "count": None}, "endless tasks: set the number with --rows"),
        (
            {"env_id": "toy-echo-v0", "count": 7},
            "has 6 tasks, got a request for 7 starting at task 0",
        ),
        ({"env_id": "toy-echo-v0", "count": None, "start": 6}, "has 6 tasks"),
        ({"env_id": "canary-v0", "count": 0}, "count must be at least 1, got 0"),
    ],
)
def test_a_wrong_number_of_tasks_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        drawn(**options)


@ALL
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_files_hold_the_rows(kind: TaskFormat, suffix: str, tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    target = tmp_path / ("folder" if kind is TaskFormat.HF else f"file{suffix}")
    with TaskDraw("canary-v0", count=3) as draw:
        assert export_tasks(draw, target, kind, with_images=True) == 3
        expected = [example.request for example in draw]
    if kind is TaskFormat.HF:
        target /= "data/train-00000-of-00001.parquet"
    rows: list[dict[str, Any]] = (
        [json.loads(line) for line in target.read_text().splitlines()]
        if target.suffix == ".jsonl"
        else parquet.read_table(target).to_pylist()
    )

    assert [request_of(row) for row in rows] == expected


def test_images_come_out_of_a_parquet_file_byte_for_byte(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    with TaskDraw("canary-v0", count=2) as draw:
        export_tasks(draw, tmp_path / "t.parquet", TaskFormat.TRL, with_images=True)
        expected = [example.images[0].png_bytes() for example in draw]
    table = parquet.read_table(tmp_path / "t.parquet")

    assert [row[0]["bytes"] for row in table["images"].to_pylist()] == expected
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["images"] == [{"_type": "Image"}]


def test_text_rows_may_ask_for_images(tmp_path: Path) -> None:
    with TaskDraw("toy-echo-v0") as draw:
        assert export_tasks(draw, tmp_path / "t.parquet", TaskFormat.VERL, with_images=True) == 6


class BreakingEnv(EchoEnv):
    """Fails at one word."""

    def on_reset(self, task: Any) -> Any:
        if task["word"] == "gamma":
            raise StorageError("the dataset is gone")
        return super().on_reset(task)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "folder"])
def test_a_failure_half_way_leaves_the_old_file(name: str, tmp_path: Path) -> None:
    import gymnasium

    import envkit

    if "envkit/toy-breaking-v0" not in gymnasium.registry:
        envkit.register("toy-breaking-v0", entry_point=BreakingEnv)
    kind = TaskFormat.HF if name == "folder" else TaskFormat.VERL
    target = tmp_path / name
    with TaskDraw("toy-echo-v0") as draw:
        export_tasks(draw, target, kind)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with TaskDraw("toy-breaking-v0") as draw, pytest.raises(StorageError, match="is gone"):
        export_tasks(draw, target, kind)

    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
