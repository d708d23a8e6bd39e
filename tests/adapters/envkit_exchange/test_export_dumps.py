"""Trainers' debug dumps as trajectories: what they hold comes through, what they lack is named."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from envkit.errors import ConfigurationError, StorageError
from envkit.trajectory import SegmentKind, StopReason, Trajectory, check_trajectory
from envkit_exchange import DumpFormat, SlimeOptions, read_dump

IDS = (DumpFormat.SLIME, DumpFormat.MILES)


def sample(**changes: Any) -> dict[str, Any]:
    """A sample of two turns as slime's `Sample.to_dict` writes it."""
    return {
        "group_index": 0,
        "index": 0,
        "prompt": [{"role": "user", "content": "What is 1+1?"}],
        "tokens": [1, 2, 3, 10, 11, 20, 21, 12, 13],
        "response": "let me see; well? 2",
        "response_length": 6,
        "reward": 1.0,
        "loss_mask": [1, 1, 0, 0, 1, 1],
        "rollout_log_probs": [-0.1, -0.2, 0.0, 0.0, -0.3, -0.4],
        "weight_versions": ["3", "4"],
        "remove_sample": False,
        "status": "completed",
        "metadata": {},
        "label": "2",
        **changes,
    }


def stored(folder: Path, *samples: dict[str, Any], **more: Any) -> Path:
    path = folder / "7.pt"
    torch.save({"rollout_id": 7, "samples": list(samples), **more}, path)
    return path


def loaded(path: Path, kind: DumpFormat = DumpFormat.SLIME, **options: Any) -> list[Trajectory]:
    return list(read_dump(path, kind, SlimeOptions(name=kind.value, **options)))


@pytest.mark.parametrize("kind", IDS)
def test_a_sample_becomes_the_ledger_that_it_was(kind: DumpFormat, tmp_path: Path) -> None:
    (trajectory,) = loaded(stored(tmp_path, sample()), kind)

    assert trajectory.train_ids() == (1, 2, 3, 10, 11, 20, 21, 12, 13)
    assert trajectory.loss_mask() == (0, 0, 0, 1, 1, 0, 0, 1, 1)
    assert trajectory.logprobs() == (0.0, 0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.3, -0.4)
    assert [s.kind for s in trajectory.segments] == [
        SegmentKind.PROMPT, SegmentKind.MODEL, SegmentKind.OBSERVATION, SegmentKind.MODEL
    ]  # fmt: skip
    assert [s.weight_version for s in trajectory.segments] == [None, "3", None, "4"]
    assert trajectory.reward == 1.0
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert [m["content"] for m in trajectory.messages] == ["What is 1+1?", "let me see; well? 2"]
    assert trajectory.metadata["missing"] == []
    assert check_trajectory(trajectory) == ()


@pytest.mark.parametrize(
    ("status", "reason", "reward"),
    [
        ("completed", StopReason.TERMINATED, 1.0),
        ("truncated", StopReason.RESPONSE_TOKENS, 1.0),
        ("aborted", StopReason.ABORTED, None),
        ("pending", StopReason.ABORTED, None),
        ("failed", StopReason.ENV_FAULT, None),
    ],
)
def test_every_status_gives_a_sound_trajectory(
    status: str, reason: StopReason, reward: float | None, tmp_path: Path
) -> None:
    (trajectory,) = loaded(stored(tmp_path, sample(status=status)))

    assert (trajectory.stop_reason, trajectory.reward) == (reason, reward)
    assert check_trajectory(trajectory) == ()
    assert any(trajectory.loss_mask()) is (status != "failed")


def test_members_of_a_group_stay_together(tmp_path: Path) -> None:
    run = loaded(stored(tmp_path, *(sample(group_index=n // 2, index=n) for n in range(4))))

    assert [t.group_id for t in run] == ["slime-7-0", "slime-7-0", "slime-7-1", "slime-7-1"]
    assert len({t.episode_id for t in run}) == 4


def test_a_request_in_the_metadata_names_environment_and_task(tmp_path: Path) -> None:
    column = {
        "env_id": "canary-v0",
        "seed": 5,
        "task": {"codes": ["A"]},
        "limits": {"max_turns": 2},
    }
    for metadata in ({"envkit": column}, {"envkit": json.dumps(column)}):
        (trajectory,) = loaded(stored(tmp_path, sample(metadata=metadata)))

        assert trajectory.env_id == "canary-v0"
        assert trajectory.seed == 5
        assert trajectory.task == {"codes": ["A"]}


@pytest.mark.parametrize("metadata", [None, {}, {"envkit": "no json"}, {"envkit": 3}])
def test_other_metadata_are_not_a_request(metadata: Any, tmp_path: Path) -> None:
    (trajectory,) = loaded(stored(tmp_path, sample(metadata=metadata)))

    assert trajectory.env_id == "slime"


def test_a_tokenizer_splits_the_text_into_turns(tmp_path: Path) -> None:
    def decode(ids: Any) -> str:
        return "-".join(map(str, ids))

    (trajectory,) = loaded(stored(tmp_path, sample()), decode=decode)

    assert [(m["role"], m["content"]) for m in trajectory.messages] == [
        ("user", "What is 1+1?"),
        ("assistant", "10-11"),
        ("user", "20-21"),
        ("assistant", "12-13"),
    ]
    assert [t.response_text for t in trajectory.turns] == ["10-11", "12-13"]


def test_sampled_tokens_that_were_masked_out_stay_a_reply(tmp_path: Path) -> None:
    """slime masks the tokens of older weights when a partial rollout goes on."""
    (trajectory,) = loaded(stored(tmp_path, sample(loss_mask=[0, 0, 0, 0, 1, 1])))

    assert [s.kind for s in trajectory.segments][1] is SegmentKind.MODEL
    assert trajectory.loss_mask() == (0,) * 7 + (1, 1)


def test_a_sample_without_a_mask_is_trained_whole(tmp_path: Path) -> None:
    (trajectory,) = loaded(stored(tmp_path, sample(loss_mask=None, rollout_log_probs=[-0.1] * 6)))

    assert trajectory.loss_mask() == (0, 0, 0, 1, 1, 1, 1, 1, 1)


def test_an_observation_at_either_end_of_a_response_keeps_the_ledger_sound(tmp_path: Path) -> None:
    mask, logprobs = [0, 1, 1, 0, 0, 0], [0.0, -0.1, -0.2, 0.0, 0.0, 0.0]
    (trajectory,) = loaded(stored(tmp_path, sample(loss_mask=mask, rollout_log_probs=logprobs)))

    assert trajectory.train_ids() == (1, 2, 3, 10, 11, 20)
    assert trajectory.metadata["dropped_tokens"] == 3
    assert check_trajectory(trajectory) == ()


def test_missing_logprobs_are_an_error_unless_they_may_be_missing(tmp_path: Path) -> None:
    path = stored(tmp_path, sample(rollout_log_probs=None))
    with pytest.raises(StorageError, match=r"sample 0: rollout_log_probs .* --without-logprobs"):
        loaded(path)

    (trajectory,) = loaded(path, without_logprobs=True)
    assert trajectory.metadata["missing"] == ["log-probabilities"]
    assert all(map(math.isnan, trajectory.segments[1].logprobs))
    assert trajectory.loss_mask() == (0, 0, 0, 1, 1, 0, 0, 1, 1)
    assert "logprobs" in {problem.rule for problem in check_trajectory(trajectory)}


def test_images_are_named_as_missing(tmp_path: Path) -> None:
    tensors = {"pixel_values": torch.ones(4, 3)}
    (trajectory,) = loaded(stored(tmp_path, sample(multimodal_train_inputs=tensors)))

    assert trajectory.metadata["missing"] == ["images"]


def test_arrays_are_plain_data(tmp_path: Path) -> None:
    """miles keeps routed experts as NumPy arrays."""
    routed = np.zeros((8, 2, 2), np.int32)

    assert loaded(stored(tmp_path, sample(rollout_routed_experts=routed)), DumpFormat.MILES)


def test_a_reward_of_many_parts_needs_a_key(tmp_path: Path) -> None:
    path = stored(tmp_path, sample(reward={"score": 0.5, "format": 1.0}))
    with pytest.raises(ConfigurationError, match=r"\['format', 'score'\] with --reward-key"):
        loaded(path)

    assert loaded(path, reward_key="score")[0].reward == 0.5


@dataclass
class Trap:
    """Leaves a mark where somebody unpickles it."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_text_file_is_not_taken_for_a_dump_to_trust(tmp_path: Path) -> None:
    path = tmp_path / "notes.pt"
    path.write_text("not a dump\n")
    with pytest.raises(StorageError, match=r"notes\.pt is not a torch file") as caught:
        list(read_dump(path, DumpFormat.SLIME, SlimeOptions(name="slime")))
    assert "allow-pickle" not in str(caught.value)


def test_code_in_a_dump_never_runs_unless_the_file_is_trusted(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = stored(tmp_path, sample(), trap=Trap(mark))
    with pytest.raises(StorageError, match=r"If you trust it, add --allow-pickle"):
        loaded(path)

    assert not mark.exists()
    assert len(loaded(path, allow_pickle=True)) == 1
    assert mark.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "odd"}, "status must be one of"),
        ({"response_length": 10}, "response_length must be from 0 to 9, got 10"),
        ({"loss_mask": [1]}, "must have one length"),
        ({"tokens": None}, "'tokens' must be a list, got NoneType"),
        ({"reward": None}, "the reward must be a finite number, got None"),
        ({"reward": math.nan}, "finite number"),
        ({"response_length": 0, "loss_mask": [], "rollout_log_probs": []}, "sampled no token"),
    ],
)
def test_a_damaged_sample_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"sample 1: .*{said}"):
        loaded(stored(tmp_path, sample(), sample(**changes)))


@pytest.mark.parametrize("content", [b"", b"no torch file", None])
def test_file_other_than_torch_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StorageError, match=r"x\.pt"):
        loaded(path)


@pytest.mark.parametrize("value", [[1, 2], {"other": 1}, {"samples": [3]}])
def test_another_torch_file_is_refused(value: Any, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(StorageError, match=r"must (hold|be) a mapping"):
        loaded(tmp_path / "x.pt")


VERL = {"input": "user\n1+1?", "output": "2", "gts": "2", "score": 1.0, "step": 4, "acc": 1.0}
SKYRL = {
    "input_prompt": "<user>1+1?", "output_response": "2<end>", "score": [0.0, 0.5],
    "stop_reason": "stop", "env_class": "gsm8k", "data_source": "gsm", "env_extras": {},
}  # fmt: skip


def lines(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "dump.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_verl_lines_keep_text_reward_and_what_the_reward_function_said(tmp_path: Path) -> None:
    first, second = loaded(lines(tmp_path, VERL, {**VERL, "output": "3", "score": 0.0}),
                           DumpFormat.VERL)  # fmt: skip

    assert [m["content"] for m in first.messages] == ["user\n1+1?", "2"]
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert first.group_id == second.group_id
    assert first.metadata["acc"] == 1.0
    assert "ids" in first.metadata["missing"]
    assert first.segments == ()
    assert check_trajectory(first) == ()


def test_skyrl_lines_sum_the_rewards_of_their_tokens(tmp_path: Path) -> None:
    column = json.dumps({"env_id": "canary-v0", "seed": 3})
    whole, cut = loaded(
        lines(
            tmp_path, SKYRL, {**SKYRL, "stop_reason": "length", "env_extras": {"envkit": column}}
        ),
        DumpFormat.SKYRL,
    )

    assert whole.reward == 0.5
    assert whole.env_id == "gsm8k"
    assert whole.stop_reason is StopReason.TERMINATED
    assert cut.stop_reason is StopReason.RESPONSE_TOKENS
    assert (cut.env_id, cut.seed) == ("canary-v0", 3)
    assert check_trajectory(whole) == check_trajectory(cut) == ()


@pytest.mark.parametrize("kind", [DumpFormat.VERL, DumpFormat.SKYRL])
@pytest.mark.parametrize(
    ("row", "said"),
    [({"eval/all/avg": 0.5}, "line 1 must have"), ([1], "must be a JSON object, got list")],
)
def test_another_file_next_to_the_dump_is_refused(
    kind: DumpFormat, row: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match=said):
        loaded(lines(tmp_path, row), kind)


def trl_file(folder: Path, **more: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    said = [{"role": "user", "content": "1+1?"}]
    reply = [{"role": "assistant", "content": "2"}]
    columns = {
        "step": [3, 3], "prompt": [said, said], "completion": [reply, reply],
        "env_reward": [1.0, None], "advantage": [0.5, -0.5], **more,
    }  # fmt: skip
    parquet.write_table(pa.table(columns), folder / "completions_00003.parquet")
    return folder / "completions_00003.parquet"


def test_trl_rows_keep_messages_and_reward(tmp_path: Path) -> None:
    scored, unscored = loaded(trl_file(tmp_path), DumpFormat.TRL)

    assert [(m["role"], m["content"]) for m in scored.messages] == [
        ("user", "1+1?"), ("assistant", "2")
    ]  # fmt: skip
    assert (scored.reward, unscored.reward) == (1.0, None)
    assert scored.group_id == unscored.group_id
    assert scored.metadata["advantage"] == 0.5
    assert check_trajectory(scored) == check_trajectory(unscored) == ()


def test_trl_rows_with_more_rewards_need_a_key(tmp_path: Path) -> None:
    path = trl_file(tmp_path, length_reward=[0.1, 0.2])
    with pytest.raises(ConfigurationError, match=r"\['env_reward', 'length_reward'\]"):
        loaded(path, DumpFormat.TRL)

    assert loaded(path, DumpFormat.TRL, reward_key="length_reward")[1].reward == 0.2


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(StorageError, match="columns prompt and completion"):
        loaded(tmp_path / "a.parquet", DumpFormat.TRL)
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(StorageError, match="not a readable parquet file"):
        loaded(tmp_path / "b.parquet", DumpFormat.TRL)


def test_options_that_a_dump_of_text_cannot_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not use --allow-pickle"):
        loaded(lines(tmp_path, VERL), DumpFormat.VERL, allow_pickle=True)
