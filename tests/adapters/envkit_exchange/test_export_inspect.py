"""Inspect logs: what is in the archive. `make contract-inspect` lets Inspect read them."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.trajectories import Reply, build, example

from envkit.errors import FaultKind
from envkit.trajectory import FaultPlace, FaultRecord, StopReason, save


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
        (("--out", "log.eval", "--images"), "does not use --images"),
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
