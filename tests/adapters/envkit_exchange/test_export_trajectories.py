"""Trajectories as dataset rows and Inspect logs: ids, masks, log-probabilities and images."""

import base64
import json
import math
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.trajectories import Context, Reply, build, example, picture, quick, trajectories
from hypothesis import given

from envkit.errors import ConfigurationError, DatasetError, FaultKind, StorageError
from envkit.images import Image
from envkit.messages import images_of, message
from envkit.trajectory import FaultPlace, FaultRecord, StopReason, Trajectory, save
from envkit_exchange import (
    ExportTally,
    Selection,
    TrajectoryFormat,
    chat_row,
    export_trajectories,
    full_row,
)
from envkit_exchange.trajectories import rows_of_trajectory

SFT, PARQUET, HF = TrajectoryFormat.SFT, TrajectoryFormat.PARQUET, TrajectoryFormat.HF


def exported(
    run: list[Trajectory],
    folder: Path,
    kind: TrajectoryFormat = SFT,
    suffix: str = ".parquet",
    **selection: Any,
) -> tuple[list[dict[str, Any]], ExportTally]:
    """Store a run, export it and read the rows back."""
    import pyarrow.parquet as parquet

    source, target = folder / "run.jsonl", folder / ("hf" if kind is HF else f"rows{suffix}")
    save(run, source)
    selection.setdefault("only_trained", kind is SFT)
    tally = export_trajectories(source, target, kind, Selection(**selection))
    if kind is HF:
        target /= "data/train-00000-of-00001.parquet"
    if target.suffix == ".jsonl":
        return [json.loads(line) for line in target.read_text().splitlines()], tally
    return parquet.read_table(target).to_pylist(), tally


def picture_bytes(row: dict[str, Any]) -> list[bytes]:
    return [
        base64.b64decode(image.partition("base64,")[2])
        if isinstance(image, str)
        else image["bytes"]
        for image in row["images"]
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("kind", [SFT, PARQUET, HF])
def test_ids_mask_logprobs_and_images_come_back_exactly(
    kind: TrajectoryFormat, suffix: str, tmp_path: Path
) -> None:
    run = [example(n) for n in range(3)]
    rows, tally = exported(run, tmp_path, kind, suffix)

    assert tally.rows == tally.trajectories == len(rows) == 3
    for row, trajectory in zip(rows, run, strict=True):
        assert tuple(row["input_ids"]) == trajectory.train_ids()
        assert tuple(row["loss_mask"]) == trajectory.loss_mask()
        assert tuple(row["logprobs"]) == trajectory.logprobs()
        assert picture_bytes(row) == [image.png_bytes() for image in trajectory.images()]
        assert [Image.from_bytes(data) for data in picture_bytes(row)] == list(trajectory.images())
        assert row["reward"] == trajectory.reward
        assert row["episode_id"] == trajectory.episode_id


def test_labels_are_the_ids_that_are_trained(tmp_path: Path) -> None:
    ((row,), _) = exported([example()], tmp_path)

    assert any(label == -100 for label in row["labels"])
    for token, mask, label in zip(row["input_ids"], row["loss_mask"], row["labels"], strict=True):
        assert label == (token if mask else -100)


def test_messages_hold_what_the_ids_hold(tmp_path: Path) -> None:
    trajectory = example()
    ((row,), _) = exported([trajectory], tmp_path)
    marks = [p for m in row["messages"] for p in m["content"] if p["type"] == "image"]

    assert row["messages"][-1]["role"] == "assistant"
    assert [m["role"] for m in row["messages"]] == [m["role"] for m in trajectory.messages]
    assert len(marks) == len(row["images"]) == 3


def test_messages_of_text_runs_are_plain_text(tmp_path: Path) -> None:
    ((row,), _) = exported([build((Reply(reward=1.0),))], tmp_path)

    assert row["messages"] == [
        {"role": "user", "content": "solve it"},
        {"role": "assistant", "content": "a reply"},
    ]
    assert row["images"] == []


def test_a_final_observation_after_the_ids_is_not_in_the_messages(tmp_path: Path) -> None:
    trajectory = build((Reply(reward=1.0),))
    told = replace(trajectory, messages=(*trajectory.messages, message("user", "Right.")))
    ((row,), _) = exported([told], tmp_path)

    assert [m["role"] for m in row["messages"]] == ["user", "assistant"]


def test_steps_give_a_row_each_turn_with_everything_before_it(tmp_path: Path) -> None:
    trajectory = example()
    rows, tally = exported([trajectory], tmp_path, PARQUET, steps=True)

    assert tally.rows == 3
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert [row["is_last"] for row in rows] == [False, False, True]
    assert [len(row["images"]) for row in rows] == [1, 3, 3]
    assert [sum(row["loss_mask"]) for row in rows] == [3, 3, 3]
    assert (
        rows[1]["input_ids"][: rows[1]["prompt_length"]][: len(rows[0]["input_ids"])]
        == (rows[0]["input_ids"])
    )
    assert [m["role"] for m in rows[1]["messages"]] == ["user", "assistant", "user", "assistant"]
    assert [row["weight_versions"] for row in rows] == [["7"], ["7"], ["8"]]


def test_rewards_of_turns_are_on_their_last_tokens(tmp_path: Path) -> None:
    ((row,), _) = exported([example()], tmp_path, PARQUET)

    assert len(row["token_rewards"]) == len(row["input_ids"]) - row["prompt_length"]
    assert row["token_rewards"][-1] == 1.0
    assert math.fsum(row["token_rewards"]) == row["reward"]


REWRITTEN = (
    Reply(observation=Context(text_ids=(31, 32)), starts_sequence=True),
    Reply(reward=1.0),
)

"""Two turns, and a template that showed the second one another history."""


def test_a_rewritten_history_needs_rows_of_its_own(tmp_path: Path) -> None:
    two = build(REWRITTEN)
    with pytest.raises(ConfigurationError, match=r"more than one row.*add --merge"):
        exported([two], tmp_path)

    rows, _ = exported([two], tmp_path, merge=True)
    assert [tuple(row["input_ids"])[:2] for row in rows] == [(11, 12), (31, 32)]


def test_images_that_the_template_dropped_are_named_and_not_guessed() -> None:
    two = build(REWRITTEN, prompt=Context(images=(picture(1),)))
    row = rows_of_trajectory(two, Selection(merge=True))[1]

    assert row.images == ()
    assert len(images_of(two.messages)) == 1
    with pytest.raises(DatasetError, match="0 images in its ids and 1 in its messages"):
        chat_row(two, row, 1, with_parts=True)
    assert full_row(two, row, 1, with_parts=True)["images"] == []


def mixed() -> list[Trajectory]:
    fault = build((Reply(reward=None),), stop_reason=StopReason.ENV_FAULT, episode_id="fault")
    return [
        build((Reply(reward=1.0),), episode_id="good"),
        build((Reply(reward=0.25),), episode_id="poor"),
        build((Reply(reward=1.0),), stop_reason=StopReason.MAX_TURNS, episode_id="cut"),
        build((), stop_reason=StopReason.ABORTED, episode_id="silent"),
        fault,
    ]


@pytest.mark.parametrize(
    ("kind", "selection", "kept", "left_out"),
    [
        (SFT, {}, ["good", "poor", "cut"], {"faulted": 1, "without a reply": 1}),
        (PARQUET, {}, ["good", "poor", "cut", "fault"], {"without a reply": 1}),
        (SFT, {"only_terminated": True}, ["good", "poor"], {"faulted": 1, "not terminated": 2}),
        (
            SFT,
            {"min_reward": 0.5},
            ["good", "cut"],
            {"faulted": 1, "without a reward": 1, "below the minimum reward": 1},
        ),
    ],
)
def test_filters_leave_out_and_count(
    kind: TrajectoryFormat,
    selection: dict[str, Any],
    kept: list[str],
    left_out: dict[str, int],
    tmp_path: Path,
) -> None:
    rows, tally = exported(mixed(), tmp_path, kind, **selection)

    assert [row["episode_id"] for row in rows] == kept
    assert dict(tally.left_out) == left_out


def test_a_faulted_row_trains_nothing(tmp_path: Path) -> None:
    rows, _ = exported(mixed(), tmp_path, PARQUET)

    assert sum(rows[-1]["loss_mask"]) == 0
    assert rows[-1]["reward"] is None


def test_nothing_left_says_why_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"all 1 .* 1 below the minimum reward"):
        exported([example()], tmp_path, min_reward=5.0)

    assert not list(tmp_path.glob("*rows*"))


def test_a_broken_line_leaves_no_file(tmp_path: Path) -> None:
    save([example()], tmp_path / "run.jsonl")
    with (tmp_path / "run.jsonl").open("a") as stream:
        stream.write("{broken\n")

    with pytest.raises(StorageError, match="line 2"):
        export_trajectories(
            tmp_path / "run.jsonl", tmp_path / "rows.parquet", SFT, Selection(only_trained=True)
        )
    assert not list(tmp_path.glob("*rows*"))


def test_text_that_no_file_can_hold_is_replaced(tmp_path: Path) -> None:
    broken = build((Reply(reward=1.0, text="half \ud83d a pair"),))
    ((row,), _) = exported([broken], tmp_path)

    assert row["messages"][1]["content"] == "half ? a pair"


@quick
@given(trajectory=trajectories())
def test_rows_hold_the_ledger_of_any_trajectory(trajectory: Trajectory) -> None:
    for selection in (Selection(steps=True), Selection(merge=True)):
        rows = rows_of_trajectory(trajectory, selection)
        cells = [full_row(trajectory, row, n, with_parts=True) for n, row in enumerate(rows)]
        trained = (
            0
            if trajectory.is_faulted
            else sum(mask for segment in trajectory.segments for mask in segment.loss_mask)
        )

        assert sum(sum(cell["loss_mask"]) for cell in cells) == trained
        for cell in cells:
            lengths = {len(cell[k]) for k in ("input_ids", "labels", "loss_mask", "logprobs")}
            assert len(lengths) == 1
        json.dumps([{**cell, "images": []} for cell in cells]).encode()


def members(file: Path) -> dict[str, Any]:
    with zipfile.ZipFile(file) as log:
        assert log.testzip() is None
        return {name: json.loads(log.read(name)) for name in log.namelist()}


def test_a_run_becomes_a_log(tmp_path: Path) -> None:
    fault = FaultRecord(where=FaultPlace.STEP, kind=FaultKind.CRASHED, message="it \ud800 died")
    episodes = [
        example(0, group_id="a/b"),
        replace(
            example(1, group_id="a/b"), reward=None, stop_reason=StopReason.ENV_FAULT, fault=fault
        ),
    ]
    save(episodes, tmp_path / "run.jsonl")
    out = tmp_path / "new" / "run.eval"
    outcome = run_envkit("export", tmp_path / "run.jsonl", "--format", "inspect", "--out", out)

    assert (outcome.code, outcome.out) == (0, f"{out}: 2 samples of 2 trajectories\n")
    found = members(out)
    fine, broken = found["samples/a_b_epoch_1.json"], found["samples/a_b_epoch_2.json"]
    assert fine["scores"]["reward"]["value"] == episodes[0].reward
    assert broken["scores"] is None
    assert "it ? died" in broken["error"]["message"]
    refers = [
        part["image"]
        for message in fine["messages"]
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == "image"
    ]
    assert {name.removeprefix("attachment://") for name in refers} == set(fine["attachments"])
    assert all(uri.startswith("data:image/png;base64,") for uri in fine["attachments"].values())
    assert found["header.json"]["results"]["scores"][0]["metrics"]["mean"]["value"] == (
        episodes[0].reward
    )
    assert "data:" not in json.dumps(found["summaries.json"])


def test_the_model_is_named_without_the_folder_it_lies_in(tmp_path: Path) -> None:
    names = {"/home/me/qwen": "sglang/qwen", "Qwen/Qwen3": "sglang/Qwen/Qwen3"}
    for place, (model, shown) in enumerate(names.items()):
        episode = replace(example(place), engine="sglang", metadata={"model": model})
        save(episode, tmp_path / f"{place}.jsonl")
        out = tmp_path / f"{place}.eval"
        run_envkit("export", tmp_path / f"{place}.jsonl", "--format", "inspect", "--out", out)
        assert members(out)["header.json"]["eval"]["model"] == shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "log.json"), "--out must end in .eval"),
        (("--out", "log.eval", "--steps"), "an Inspect log has no rows: drop --steps"),
        (("--out", "log.eval", "--with-images"), "does not use --with-images"),
        (("--out", "log.eval", "--min-reward", 99), "is left to export"),
    ],
)
def test_wrong_use_ends_in_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save(build([Reply(reward=1.0)]), "run.jsonl")
    outcome = run_envkit("export", "run.jsonl", "--format", "inspect", *arguments)

    assert outcome.code == (1 if "left to export" in message else 2)
    assert message in " ".join(outcome.err.split())
    assert {path.name for path in tmp_path.iterdir()} <= {"run.jsonl", "images"}
