"""slime's own reader takes exported tasks, and its own debug dumps come in again."""

from pathlib import Path
from typing import Any

import pytest

from envkit.rollout import EpisodeRequest
from envkit.trajectory import StopReason, check_trajectory
from envkit_exchange import DumpFormat, SlimeOptions, TaskDraw, TaskFormat, export_tasks, read_dump

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_slimes_dataset_reads_exported_tasks(suffix: str, tmp_path: Path) -> None:
    from slime.utils.data import Dataset

    path = tmp_path / f"tasks{suffix}"
    with TaskDraw("toy-dots-v0", count=3) as draw:
        export_tasks(draw, path, TaskFormat.SLIME)
        expected = [example.request for example in draw]
    dataset: Any = Dataset(
        str(path), None, None, None,
        prompt_key="prompt", label_key="label", metadata_key="metadata",
    )  # fmt: skip

    found = [EpisodeRequest.from_column(s.metadata["envkit"]) for s in dataset.samples]
    assert found == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_slimes_dataset_finds_exported_images(suffix: str, tmp_path: Path) -> None:
    from slime.utils.data import Dataset

    path = tmp_path / f"tasks{suffix}"
    with TaskDraw("toy-dots-v0", count=2) as draw:
        export_tasks(draw, path, TaskFormat.SLIME, with_images=True)
        expected = [example.images[0].data_uri() for example in draw]
    dataset: Any = Dataset(
        str(path), None, None, None,
        prompt_key="prompt", metadata_key="metadata", multimodal_keys={"image": "images"},
    )  # fmt: skip

    parts = [sample.prompt[0]["content"] for sample in dataset.samples]
    assert [part[0] for part in parts] == [{"type": "image", "image": uri} for uri in expected]


def test_slimes_debug_dump_comes_in_as_sound_trajectories(tmp_path: Path) -> None:
    import torch

    data_utils = pytest.importorskip("slime.observability.rollout_data_utils")
    from slime.utils.types import Sample

    samples: list[Any] = []
    for index, status in enumerate(("completed", "truncated", "failed", "aborted")):
        made: Any = Sample(group_index=0, index=index, prompt=[{"role": "user", "content": "hi"}])
        made.tokens = [1, 2, 3]
        made.append_response_tokens(tokens=[10, 11], log_probs=[-0.5, -0.25], text="ab")
        made.append_response_tokens(tokens=[20], trainable=False, text=" obs ")
        made.append_response_tokens(tokens=[12], log_probs=[-1.0], text="c")
        made.multimodal_train_inputs = {"pixel_values": torch.ones(2, 3)}
        made.status, made.reward = Sample.Status(status), 1.0
        samples.append(made)
    data_utils.save_debug_rollout_data(
        str(tmp_path / "{rollout_id}.pt"), samples, rollout_id=7, evaluation=False
    )
    found = list(read_dump(tmp_path / "7.pt", DumpFormat.SLIME, SlimeOptions()))

    assert [t.stop_reason for t in found] == [
        StopReason.TERMINATED, StopReason.RESPONSE_TOKENS, StopReason.ENV_FAULT, StopReason.ABORTED
    ]  # fmt: skip
    for trajectory in found:
        assert check_trajectory(trajectory) == ()
        assert trajectory.train_ids() == (1, 2, 3, 10, 11, 20, 12)
        assert trajectory.logprobs() == (0.0, 0.0, 0.0, -0.5, -0.25, 0.0, -1.0)
    assert found[0].loss_mask() == (0, 0, 0, 1, 1, 0, 1)
