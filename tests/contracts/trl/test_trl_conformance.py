"""Recordings and random histories through TRL's rows and its real trainer, up to the loss."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from fakes.codecs import vision_codec
from fakes.conformance_checks import check_projection
from fakes.models import tiny_model_dir
from fakes.random_groups import (
    FILLER,
    all_groups,
    check_advantages,
    check_owners,
    own_tokens,
    random_group,
    with_silent_leaves,
)
from fakes.trajectories import IMAGE_TOKEN

import envkit_conformance
from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest, ScriptedEngine
from envkit.trajectory import Trajectory, step_rows
from envkit_transformers.loading import load_model
from envkit_trl.conformance import PROJECTIONS
from envkit_trl.rows import episode_row
from envkit_trl.samples import RowSettings, group_samples
from envkit_trl.trainer import EnvGRPOTrainer


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_trl_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)


trl: Any = pytest.importorskip("trl")

RECORDINGS = envkit_conformance.shipped_recordings()

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


def read(batch: dict[str, Any], rewards: Sequence[float | None]) -> envkit_conformance.DeliveredRow:
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
    return envkit_conformance.DeliveredRow(
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

    def deliver(trajectory: Trajectory, *, filler_id: int) -> list[envkit_conformance.DeliveredRow]:
        del filler_id
        trainer.player.play = lambda _: (NEIGHBOUR, trajectory)
        return [read(trainer._generate_and_score_completions(list(trainer.train_dataset)), rewards)]

    subject = envkit_conformance.Projection(
        name="trl-trainer",
        shape=envkit_conformance.Shape.WHOLE,
        deliver=deliver,
        cannot_carry=frozenset({envkit_conformance.Content.SEQUENCES}),
    )
    # Qwen3-VL's patches have another width than the neighbour's, so they share no batch.
    chosen = [one for one in RECORDINGS if one.name != "images_qwen3_vl"]
    try:
        outcomes = envkit_conformance.run_suite([subject], chosen)
    finally:
        trainer.close()
    wrong = [one for one in outcomes if one.verdict is envkit_conformance.ConformanceResult.FAIL]
    assert not wrong, "\n".join(map(str, wrong))
    refused = [
        one.recording
        for one in outcomes
        if one.verdict is envkit_conformance.ConformanceResult.REFUSED
    ]
    assert refused == [
        "thinking_rerender", "compaction", "dropped_screenshot", "sub_agent", "agent",
    ]  # fmt: skip


def is_one_row(trajectory: Trajectory) -> bool:
    return len(step_rows(trajectory, filler_id=FILLER, merge=True)) == 1


def samples_of(group: tuple[Trajectory, ...], *, is_scaled: bool = False) -> list[tuple[int, Any]]:
    """Return the number of the episode and the sample of each row."""
    settings = RowSettings(
        end_id=FILLER, media_ids=(IMAGE_TOKEN,), takes_images=True, is_scaled=is_scaled
    )
    samples, _ = group_samples(group, group_id=0, version=0, settings=settings)
    owner = {token: number for number, one in enumerate(group) for token in own_tokens(one)}
    return [(owner[int(one.input_ids[one.completion_mask == 1][0])], one) for one in samples]


@pytest.mark.parametrize("is_scaled", [False, True])
def test_trl_async_random_histories_are_trained_once(is_scaled: bool) -> None:
    for _, group in all_groups():
        found = samples_of(group, is_scaled=is_scaled)
        check_owners(
            group, [(n, one.input_ids.tolist(), one.completion_mask.tolist()) for n, one in found]
        )
        advantages = [(number, float(one.advantage)) for number, one in found]
        check_advantages(group, advantages, is_scaled=is_scaled)


def test_trl_async_leaves_without_own_tokens_have_no_row() -> None:
    group = with_silent_leaves(random_group(1))
    assert {number for number, _ in samples_of(group)} <= set(range(len(group) - 2))


def test_trl_takes_one_row_and_refuses_rewritten_histories() -> None:
    for _, group in all_groups():
        single = tuple(one for one in group if one.is_faulted or is_one_row(one))
        rows = [episode_row(one, end_id=FILLER) for one in single]
        check_owners(single, [(n, row.response_ids, row.loss_mask) for n, row in enumerate(rows)])
        for one in group:
            if not any(one is other for other in single):
                with pytest.raises(ConfigurationError, match=r"envkit\.history"):
                    episode_row(one, end_id=FILLER)
