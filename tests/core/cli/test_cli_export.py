"""`envkit export` and `envkit import` through the command line."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.command import run_envkit
from fakes.models import tiny_model_dir
from fakes.trajectories import Reply, build, example

from envkit.cli.counting import CountingBar
from envkit.trajectory import StopReason, load, save
from envkit_exchange import DumpFormat, TaskFormat, TrajectoryFormat
from envkit_exchange.export_command import ExportFormat

pytestmark = pytest.mark.usefixtures("toys_here")


def test_the_options_offer_what_the_library_knows() -> None:
    assert {*ExportFormat} == {*TaskFormat, *TrajectoryFormat, "inspect"}
    refused = run_envkit("import", "dump.pt", "--from", "nosuch", "--out", "run")
    assert {*re.findall("'([a-z]+)'", refused.err)} == {*DumpFormat, "nosuch"}


@pytest.mark.parametrize("kind", [*TaskFormat])
def test_tasks_become_a_file_for_each_trainer(kind: TaskFormat) -> None:
    out = "rows" if kind is TaskFormat.HF else "rows.parquet"
    outcome = run_envkit("export", "canary-v0", "--format", kind.value, "--rows", 3, "--out", out)

    assert (outcome.code, outcome.out) == (0, f"{out}: 3 tasks\n")
    assert Path(out).exists()


def test_environment_arguments_travel_in_the_request() -> None:
    run_envkit(
        "export", "canary-v0", "--format", "verl", "--rows", 1, "--env-kwargs", "length=1",
        "--split", "test", "--seed", 3, "--out", "rows.jsonl",
    )  # fmt: skip
    row = json.loads(Path("rows.jsonl").read_text())

    assert json.loads(row["envkit"])["env_kwargs"] == {"length": 1}
    assert row["extra_info"]["split"] == "test"


def test_tasks_of_ones_own_become_a_file() -> None:
    Path("mine.jsonl").write_text('{"word": "mine"}\n')
    outcome = run_envkit(
        "export", "toy-echo-v0", "--format", "verl", "--tasks", "mine.jsonl", "--out", "rows.jsonl"
    )

    assert (outcome.code, outcome.out) == (0, "rows.jsonl: 1 tasks\n")
    assert json.loads(json.loads(Path("rows.jsonl").read_text())["envkit"])["task"] == {
        "word": "mine"
    }


@pytest.mark.parametrize("kind", [*TrajectoryFormat])
def test_a_run_becomes_a_dataset(kind: TrajectoryFormat) -> None:
    save([example(n) for n in range(4)], "run/trajectories.jsonl")
    out = "rows" if kind is TrajectoryFormat.HF else "rows.parquet"
    outcome = run_envkit("export", "run", "--format", kind.value, "--out", out)

    assert (outcome.code, outcome.out) == (0, f"{out}: 4 rows of 4 trajectories\n")


def test_a_rollout_exports_the_ids_that_it_recorded() -> None:
    model = tiny_model_dir("qwen2_5_vl")
    played = run_envkit(
        "rollout", "canary-v0", "--policy", "oracle", "--model", model, "-n", 2,
        "--out", "run", "-q",
    )  # fmt: skip
    assert played.code == 0, played.err
    outcome = run_envkit(
        "export", "run", "--format", "sft", "--out", "rows.jsonl", "--min-reward", 0.5
    )
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]

    assert outcome.code == 0
    assert [tuple(row["input_ids"]) for row in rows] == [t.train_ids() for t in load("run")]
    assert [tuple(row["loss_mask"]) for row in rows] == [t.loss_mask() for t in load("run")]


def test_what_was_left_out_is_said() -> None:
    faulted = build((Reply(reward=None),), stop_reason=StopReason.ENV_FAULT)
    save([example(0), faulted], "run.jsonl")
    outcome = run_envkit("export", "run.jsonl", "--format", "sft", "--out", "r.jsonl")

    assert (outcome.code, outcome.err) == (0, "skipped 1 faulted\n")
    assert outcome.out == "r.jsonl: 1 rows of 1 trajectories\n"


def test_tasks_of_a_stored_run_name_the_formats_that_it_has() -> None:
    save([example(0)], "run/trajectories.jsonl")
    outcome = run_envkit("export", "run", "--format", "verl", "--rows", 1, "--out", "r.jsonl")

    assert outcome.code == 2
    assert "'run' is a stored run" in outcome.err
    assert "sft, parquet, hf or inspect" in outcome.err


def test_folder_without_access_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    save([example(0)], "run.jsonl")

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    outcome = run_envkit("export", "run.jsonl", "--format", "sft", "--out", "kept/r.jsonl")

    assert (outcome.code, outcome.err) == (1, "envkit: error: kept/r.jsonl: Permission denied\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("canary-v0", "--format", "verl", "--rows", 2, "--out", "x.csv"), "must end in .jsonl or"),
        (("canary-v0", "--format", "verl", "--out", "x.jsonl"), "set the number with --rows"),
        (("canaryy-v0", "--format", "verl", "--rows", 2, "--out", "x.jsonl"), "Did you mean 'c"),
        (("nowhere", "--format", "sft", "--out", "x.jsonl"), "there is no trajectory file"),
        (
            ("canary-v0", "--format", "trl", "--rows", 2, "--merge", "--out", "x.jsonl"),
            "an export of tasks does not use --merge",
        ),
        (
            ("run.jsonl", "--format", "sft", "--rows", 2, "--seed", 1, "--out", "x.jsonl"),
            "an export of trajectories does not use --rows, --seed",
        ),
        (
            ("run.jsonl", "--format", "sft", "--steps", "--merge", "--out", "x.jsonl"),
            "choose one",
        ),
        (("canary-v0", "--format", "trl", "--rows", 2, "--out", "taken.jsonl"), "add --overwrite"),
        (("canary-v0", "--format", "trl", "--rows", 2, "--out", "folder.jsonl"), "got the folder"),
        (("canary-v0", "--format", "hf", "--rows", 2, "--out", "taken.jsonl"), "got the file"),
    ],
)
def test_wrong_use_ends_in_one_line_and_writes_nothing(
    arguments: tuple[Any, ...], said: str
) -> None:
    save([example()], "run.jsonl")
    Path("taken.jsonl").write_text("kept")
    Path("folder.jsonl").mkdir()
    outcome = run_envkit("export", *arguments)

    is_about_files = {"taken.jsonl", "folder.jsonl", "nowhere"} & set(arguments)
    assert outcome.code == (1 if is_about_files else 2)
    assert said in outcome.last_error
    assert outcome.err.count("\n") == 1
    assert Path("taken.jsonl").read_text() == "kept"
    assert not Path("x.jsonl").exists()


def test_overwrite_replaces() -> None:
    Path("x.jsonl").write_text("old")
    outcome = run_envkit(
        "export", "canary-v0", "--format", "trl", "--rows", 1, "--out", "x.jsonl", "--overwrite"
    )

    assert outcome.code == 0
    assert "old" not in Path("x.jsonl").read_text()


def dump(**changes: Any) -> Path:
    sample = {
        "tokens": [1, 2, 3, 4], "response_length": 2, "loss_mask": [1, 1], "reward": 1.0,
        "rollout_log_probs": [-0.5, -0.25], "status": "completed", "response": "hi", "prompt": "q",
        "index": 0, "group_index": 0, **changes,
    }  # fmt: skip
    torch.save({"rollout_id": 0, "samples": [sample]}, "0.pt")
    return Path("0.pt")


def test_a_slime_dump_becomes_a_run_that_verifies_and_exports() -> None:
    outcome = run_envkit("import", dump(), "--from", "slime", "--out", "run")

    assert (outcome.code, outcome.out, outcome.err) == (0, "run: 1 trajectories\n", "")
    assert run_envkit("verify", "run").code == 0
    assert run_envkit("report", "run").code == 0
    assert run_envkit("export", "run", "--format", "sft", "--out", "rows.jsonl").code == 0
    assert json.loads(Path("rows.jsonl").read_text())["labels"] == [-100, -100, 3, 4]


def test_a_tokenizer_gives_an_imported_run_its_turns() -> None:
    model = tiny_model_dir("llama")
    outcome = run_envkit("import", dump(), "--from", "slime", "--out", "run", "--model", model)

    assert outcome.code == 0
    assert load("run")[0].turns[0].response_text


def test_a_text_dump_says_what_it_lacks() -> None:
    Path("4.jsonl").write_text(json.dumps({"input": "q", "output": "a", "score": 1.0}) + "\n")
    outcome = run_envkit("import", "4.jsonl", "--from", "verl", "--out", "run")

    assert outcome.code == 0
    assert "the dump does not hold ids, images, log-probabilities, loss mask" in outcome.err
    assert "not trained on" in outcome.err
    assert run_envkit("verify", "run").code == 0
    assert run_envkit("report", "run").code == 0
    refused = run_envkit("export", "run", "--format", "sft", "--out", "x.jsonl")
    assert "has no token ledger" in refused.last_error


def test_a_run_is_not_replaced_by_accident() -> None:
    run_envkit("import", dump(), "--from", "slime", "--out", "run")
    refused = run_envkit("import", dump(), "--from", "slime", "--out", "run")

    assert refused.code == 1
    assert "already holds a run" in refused.last_error
    assert run_envkit("import", dump(), "--from", "slime", "--out", "run", "--overwrite").code == 0


def test_a_damaged_dump_leaves_no_run() -> None:
    outcome = run_envkit("import", dump(tokens=None), "--from", "slime", "--out", "run")

    assert outcome.code == 1
    assert "sample 0: 'tokens' must be a list" in outcome.last_error
    assert not Path("run").exists()


def test_an_empty_dump_is_an_error() -> None:
    torch.save({"samples": []}, "0.pt")

    assert "has no samples" in run_envkit("import", "0.pt", "--from", "miles", "--out", "r").err


@pytest.mark.parametrize(("is_quiet", "is_shown"), [(False, True), (True, False)])
def test_a_long_export_shows_how_far_it_is_on_a_terminal(
    is_quiet: bool,
    is_shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with CountingBar("tasks", is_quiet=is_quiet) as bar:
        for done in range(1, 21):
            bar.show(done, 20)

    assert ("20/20" in capsys.readouterr().err) is is_shown


def test_no_bar_is_drawn_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with CountingBar("tasks", is_quiet=False) as bar:
        bar.show(1, 1)

    assert capsys.readouterr().err == ""
