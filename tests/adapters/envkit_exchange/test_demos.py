"""`envkit demos`: noise that is never trained, splits, formats and the card."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.command import Outcome, run_envkit
from fakes.walks import WALK, register_walk

from envkit.errors import StorageError
from envkit.trajectory import SegmentKind, Trajectory, load, verify_file
from envkit_exchange import demonstrations


@pytest.fixture(autouse=True)
def _walk() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_walk()


def demos(out: Path, *more: object, n: int = 6) -> Outcome:
    return run_envkit("demos", WALK, "-n", n, "--out", out, "-q", *more)


def refused(out: Path, *more: object, code: int = 2) -> str:
    outcome = demos(out, *more)
    assert outcome.code == code
    assert not list(out.parent.glob(f"*{out.name}*"))  # nor a hidden one
    return outcome.err


def table(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    return parquet.read_table(file).to_pylist()


def card(out: Path) -> dict[str, Any]:
    return json.loads((out / "card.json").read_text())


def texts(message: dict[str, Any]) -> str:
    return "".join(part["text"] or "" for part in message["content"])


def replies(trajectory: Trajectory) -> list[str]:
    return [turn.response_text for turn in trajectory.turns]


def columns(trajectories: Sequence[Trajectory]) -> list[Any]:
    return [(one.seed, one.task, replies(one), one.loss_mask()) for one in trajectories]


def test_demonstrations_are_the_oracles_solved_episodes_each_once(tmp_path: Path) -> None:
    outcome = demos(tmp_path / "d", n=30)
    held = load(tmp_path / "d" / "train")

    assert outcome.code == 0
    assert len(held) == len({json.dumps(one.task) for one in held}) == 5  # of 30 episodes
    assert all(replies(one) == ["right"] * 3 and one.reward == 1.0 for one in held)
    assert verify_file(tmp_path / "d" / "train" / "trajectories.jsonl").problems == ()
    assert card(tmp_path / "d")["left_out"] == {"repeated": 25}


def test_noise_is_recorded_masked_and_recovered_from(tmp_path: Path) -> None:
    assert demos(tmp_path / "d", "--noise", "0.4", n=20).code == 0
    noisy = 0
    for one in load(tmp_path / "d" / "train"):
        wrong = [turn for turn, reply in enumerate(replies(one)) if reply == "left"]
        noisy += len(wrong)
        assert one.metadata.get("noisy_turns", []) == wrong
        assert replies(one)[-1] == "right"
        assert one.reward == 1.0
        for segment in one.segments:
            if segment.kind is SegmentKind.MODEL:
                assert set(segment.loss_mask) == {int(segment.turn not in wrong)}
    assert noisy == card(tmp_path / "d")["splits"]["train"]["noisy_turns"] > 0


def test_noise_is_repeatable_and_depends_on_the_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        demos(tmp_path / name, "--noise", "0.4", "--seed", seed)
    first, again, other = (columns(load(tmp_path / name / "train")) for name in "abc")

    assert first == again != other
    assert card(tmp_path / "a") == card(tmp_path / "b")


def test_exported_rows_have_no_label_in_noisy_replies(tmp_path: Path) -> None:
    demos(tmp_path / "d", "--noise", "0.4", n=20)
    run_envkit("export", tmp_path / "d" / "train", "--format", "sft", "--out", tmp_path / "r.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    held = load(tmp_path / "d" / "train")

    trained = [sum(label != -100 for label in row["labels"]) for row in rows]
    assert trained == [
        sum(turn.response_tokens for turn in one.turns if turn.response_text == "right")
        for one in held
    ]


def test_failed_episodes_are_counted_and_kept_only_on_request(tmp_path: Path) -> None:
    never = ("--env-kwargs", "never=true")
    message = refused(tmp_path / "d", *never, code=1)
    assert "all 6 episodes were left out, so there is no demonstration: 6 failed" in message

    assert demos(tmp_path / "d", "--with-failed", *never).code == 0
    assert card(tmp_path / "d")["success_rate"] == 0.0
    assert all(one.reward == 0.0 for one in load(tmp_path / "d" / "train"))


def test_splits_share_no_task_and_keep_it_in_longer_runs(tmp_path: Path) -> None:
    of: list[dict[str, set[str]]] = []
    for count in (12, 60):
        out = tmp_path / str(count)
        assert demos(out, "--test-share", "0.5", "--noise", "0.3", n=count).code == 0
        of.append({s: {str(t.task) for t in load(out / s)} for s in ("train", "test")})

    for tasks in of:
        assert tasks["train"]
        assert tasks["test"]
        assert not tasks["train"] & tasks["test"]
    assert of[0]["test"] <= of[1]["test"]
    assert of[0]["train"] <= of[1]["train"]


def test_trl_rows_hold_a_part_for_each_image(tmp_path: Path) -> None:
    demos(tmp_path / "d", "--format", "trl")
    for row in table(tmp_path / "d" / "train.parquet"):
        marks = [part for one in row["messages"] for part in one["content"]]
        assert [one["role"] for one in row["messages"]][:3] == ["system", "user", "assistant"]
        assert row["messages"][-1]["role"] == "assistant"
        assert texts(row["messages"][-1]) == "right"
        assert sum(part["type"] == "image" for part in marks) == len(row["images"]) == 3
        assert all(image["bytes"].startswith(b"\x89PNG") for image in row["images"])
        assert row["success"]
        assert row["reward"] == 1.0


def test_trl_rows_of_turns_complete_only_the_oracles_replies(tmp_path: Path) -> None:
    demos(tmp_path / "d", "--format", "trl", "--steps", "--noise", "0.4", n=20)
    rows = table(tmp_path / "d" / "train.parquet")
    said = [texts(one) for row in rows for one in row["prompt"] if one["role"] == "assistant"]

    assert {texts(row["completion"][0]) for row in rows} == {"right"}
    assert "left" in said  # what the oracle recovers from is context
    assert all(len(row["images"]) == row["turn"] + 1 for row in rows)
    counts = card(tmp_path / "d")["splits"]["train"]
    assert len(rows) == counts["rows"] == counts["turns"] - counts["noisy_turns"]


def test_llama_factory_rows_have_a_mark_and_a_file_for_each_image(tmp_path: Path) -> None:
    demos(tmp_path / "d", "--format", "llama-factory")
    (entry,) = json.loads((tmp_path / "d" / "dataset_info.json").read_text()).items()

    assert entry[0] == "toy-walk-v0-train"
    assert entry[1]["formatting"] == "sharegpt"
    for line in (tmp_path / "d" / entry[1]["file_name"]).read_text().splitlines():
        row = json.loads(line)
        said = [one["content"] for one in row["messages"]]
        assert sum(text.count("<image>") for text in said) == len(row["images"]) == 3
        assert "Literally image." in said[3]
        assert all((tmp_path / "d" / path).is_file() for path in row["images"])


def test_verl_rows_have_a_mark_and_bytes_for_each_image(tmp_path: Path) -> None:
    demos(tmp_path / "d", "--format", "verl")
    for row in table(tmp_path / "d" / "train.parquet"):
        said = [one["content"] for one in row["messages"]]
        assert sum(text.count("<image>") for text in said) == len(row["images"]) == 3


@pytest.mark.parametrize("kind", ["trl", "verl", "llama-factory"])
def test_rows_without_images_are_plain_text(kind: str, tmp_path: Path) -> None:
    demos(tmp_path / "d", "--format", kind, "--env-kwargs", "with_picture=false")
    is_json = kind == "llama-factory"
    file = tmp_path / "d" / ("train.jsonl" if is_json else "train.parquet")
    rows = list(map(json.loads, file.read_text().splitlines())) if is_json else table(file)

    assert "images" not in rows[0]
    assert rows[0]["messages"][2] == {"role": "assistant", "content": "right"}


@pytest.mark.parametrize("kind", ["trl", "verl", "llama-factory"])
def test_noise_is_refused_where_a_trainer_would_train_it(kind: str, tmp_path: Path) -> None:
    message = refused(tmp_path / "d", "--format", kind, "--noise", "0.1")
    assert f"--format {kind} cannot leave out noisy replies" in message


@pytest.mark.parametrize("kind", ["ledger", "verl", "llama-factory"])
def test_rows_of_turns_are_refused_by_other_formats(kind: str, tmp_path: Path) -> None:
    assert "--steps is for --format trl" in refused(tmp_path / "d", "--format", kind, "--steps")


def test_noise_needs_the_environments_own_random_policy(tmp_path: Path) -> None:
    outcome = run_envkit("demos", "canary-v0", "--noise", "0.1", "--out", tmp_path / "d")
    assert outcome.code == 2
    assert "--noise plays valid actions of the environment's own policy 'random'" in outcome.err


def test_tools_are_refused_by_rows_of_messages(tmp_path: Path) -> None:
    outcome = run_envkit("demos", "geo3k-v0", "--format", "trl", "--out", tmp_path / "d")
    assert outcome.code == 2
    assert "no place for the definitions of tools" in outcome.err


def test_existing_folders_are_replaced_only_if_they_hold_demonstrations(tmp_path: Path) -> None:
    out = tmp_path / "d"
    demos(out)
    assert "already exists" in demos(out).err
    assert demos(out, "--overwrite", "--format", "trl").code == 0
    assert not (out / "train").exists()

    (out / "card.json").unlink()
    assert "--overwrite replaces only demonstrations" in demos(out, "--overwrite").err
    assert (out / "train.parquet").exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demonstrations.DemoWriter, "take", interrupt)
    assert demos(tmp_path / "d").code == 130
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("a hidden file") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(demonstrations.TrajectoryWriter, "write", full)
    message = refused(tmp_path / "d", code=1)
    assert f"cannot write {tmp_path / 'd'}, so nothing is kept: No space left" in message


def test_an_oracle_that_fails_at_some_tasks_loses_only_those(tmp_path: Path) -> None:
    assert demos(tmp_path / "d", "--env-kwargs", "lost=1", n=30).code == 0
    held = load(tmp_path / "d" / "train")

    assert sorted(one.task["number"] % 5 for one in held) == [0, 2, 3, 4]
    assert card(tmp_path / "d")["left_out"]["failed"] > 0


def test_environments_without_an_oracle_are_refused_by_name(tmp_path: Path) -> None:
    outcome = run_envkit("demos", "gymnasium/CartPole-v1", "--out", tmp_path / "d")
    assert outcome.code == 2
    assert "CartPoleEnv has no oracle policy" in outcome.err


def test_a_test_split_without_demonstrations_is_noted(tmp_path: Path) -> None:
    outcome = demos(tmp_path / "d", "--test-share", "0.000001", n=1)
    assert outcome.code == 0
    assert "no demonstration belongs to the test split" in outcome.err


def test_wrappers_reach_the_demonstrations(tmp_path: Path) -> None:
    demos(tmp_path / "d", "--wrap", "resize-image:side=56")
    assert all(
        image.size == (56, 56) for one in load(tmp_path / "d" / "train") for image in one.images()
    )
    assert card(tmp_path / "d")["wrap_kwargs"] == {"resize-image": {"side": 56}}
