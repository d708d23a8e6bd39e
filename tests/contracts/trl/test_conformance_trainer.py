"""Every recording through TRL's real trainer, up to the batch that goes into the loss."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from fakes.codecs import vision_codec
from fakes.models import tiny_model_dir

from envkit.rollout import EpisodeRequest, ScriptedEngine
from envkit.trajectory import Trajectory
from envkit_conformance import (
    Content,
    DeliveredRow,
    Projection,
    Shape,
    Verdict,
    run_suite,
    shipped_recordings,
)
from envkit_transformers.loading import load_model
from envkit_trl.trainer import EnvGRPOTrainer

trl: Any = pytest.importorskip("trl")
pytestmark = pytest.mark.trl
RECORDINGS = shipped_recordings()
NEIGHBOUR = next(one.trajectory for one in RECORDINGS if one.name == "images")
IMAGE_PAD = 151655
"""Of the recordings' vocabulary, Qwen's own; the trainer's model is a tiny one with another."""


def make_trainer(folder: Path, rewards: list[Any]) -> Any:
    model, _ = load_model(str(tiny_model_dir("qwen2_5_vl")), dtype="float32")

    def keep(env_reward: Sequence[float | None], **_: Any) -> list[float | None]:
        rewards[:] = env_reward
        return list(env_reward)

    async def send_weights(*_: Any) -> None:
        """The scripted engine has no weights."""

    row = {
        "prompt": [{"role": "user", "content": "-"}],
        "envkit": EpisodeRequest(env_id="recorded-v0").to_column(),
    }
    trainer: Any = EnvGRPOTrainer(
        model,
        engine=ScriptedEngine(vision_codec(), lambda context: "-"),
        codec=vision_codec(),
        args=trl.GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=1024,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list([row] * 2),
        reward_funcs=[keep],
        send_weights=send_weights,
    )
    trainer._image_pad_token_id = IMAGE_PAD
    return trainer


def read(batch: dict[str, Any], rewards: Sequence[float | None]) -> DeliveredRow:
    """Read the second row of the batch that goes into the loss."""
    completion = batch["completion_mask"][1].bool()
    mask = (batch["completion_mask"] * batch["tool_mask"])[1]
    tensors: dict[str, Any] = {}
    first, second = batch["num_images"]
    if second:
        grids = batch["image_grid_thw"]
        patches = int(grids[:first].prod(-1).sum())
        tensors = {
            "pixel_values": np.asarray(batch["pixel_values"][patches:]),
            "image_grid_thw": np.asarray(grids[first:]),
        }
    return DeliveredRow(
        prompt_ids=batch["prompt_ids"][1][batch["prompt_mask"][1].bool()].tolist(),
        response_ids=batch["completion_ids"][1][completion].tolist(),
        loss_mask=mask[completion].tolist(),
        logprobs=batch["sampling_per_token_logps"][1][completion].tolist(),
        reward=rewards[1],
        tensors=tensors,
        is_unscorable=rewards[1] is None,
    )


def test_trl_trainer_has_every_recording_with_its_images(tmp_path: Path) -> None:
    rewards: list[Any] = []
    trainer = make_trainer(tmp_path, rewards)

    def deliver(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
        del filler_id
        trainer.player.play = lambda _: (NEIGHBOUR, trajectory)
        return [read(trainer._generate_and_score_completions(list(trainer.train_dataset)), rewards)]

    subject = Projection(
        name="trl-trainer",
        shape=Shape.WHOLE,
        deliver=deliver,
        cannot_carry=frozenset({Content.SEQUENCES}),
    )
    # Qwen3-VL's patches have another width than the neighbour's, so they share no batch.
    chosen = [one for one in RECORDINGS if one.name != "images_qwen3_vl"]
    try:
        outcomes = run_suite([subject], chosen)
    finally:
        trainer.close()
    wrong = [one for one in outcomes if one.verdict is Verdict.FAIL]
    assert not wrong, "\n".join(map(str, wrong))
    refused = [one.recording for one in outcomes if one.verdict is Verdict.REFUSED]
    assert refused == [
        "thinking_rerender", "compaction", "dropped_screenshot", "sub_agent", "agent",
    ]  # fmt: skip
