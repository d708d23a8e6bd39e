"""`EnvAsyncGRPOTrainer`: images of every turn under TRL's real AsyncGRPOTrainer."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.codecs import vision_codec
from fakes.models import tiny_model_dir
from fakes.trl_run import async_arguments, changed_tensors, parameters, replace_gpu_parts
from transformers import PrinterCallback

from envkit.errors import ConfigurationError, LedgerFault
from envkit.rollout import EpisodeRequest
from envkit_transformers import TransformersEngine
from envkit_transformers.loading import load_model
from envkit_trl import EnvAsyncGRPOTrainer, EnvRolloutWorker, request_dataset
from envkit_trl.samples import IdsWithImages, RowSettings, group_samples

Make = Callable[..., Any]
PICTURES = EpisodeRequest(env_id="toy-pictured-letters-v0", task={"name": "ann"})


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make trainers of the tiny Qwen2.5-VL, whose worker samples with a copy of the weights."""
    replace_gpu_parts(monkeypatch)
    folder = str(tiny_model_dir("qwen2_5_vl"))
    made: list[tuple[Any, Any]] = []

    def make(request: EpisodeRequest = PICTURES, **options: Any) -> Any:
        model, processor = load_model(folder, dtype="float32")
        engine = TransformersEngine(model, processor)
        args = async_arguments(tmp_path, **options.pop("arguments", {}))
        dataset = request_dataset([request] * 4)
        worker = EnvRolloutWorker(
            args,
            dataset,
            engine=engine,
            codec=vision_codec(),
            config={"sampling": {"max_new_tokens": 6}},
            groups_at_once=1,
            buffer_rows=4,
        )
        one: Any = EnvAsyncGRPOTrainer(
            folder,
            rollout_worker=worker,
            args=args,
            train_dataset=dataset,
            processing_class=processor.tokenizer,
            **options,
        )
        one.remove_callback(PrinterCallback)
        one.sampled_with = model
        made.append((worker, engine))
        return one

    yield make
    for worker, engine in made:
        worker.stop()
        asyncio.run(engine.aclose())


def _batch(trainer: Any) -> Any:
    """Return the first batch of rows that the worker plays, before any training."""
    worker = trainer.rollout_worker
    worker.start()
    try:
        return next(iter(trainer.get_train_dataloader()))
    finally:
        worker.stop()


def _loss(trainer: Any, batch: Any) -> tuple[float, dict[str, float]]:
    trainer.current_gradient_accumulation_steps = 1
    trainer._metrics["train"].clear()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    return float(loss), {name: values[-1] for name, values in trainer._metrics["train"].items()}


def test_trl_async_training_with_images_changes_every_tensor(trainer: Make) -> None:
    made = trainer()
    before = parameters(made.model)
    made.train()
    assert made.state.global_step == 3
    assert changed_tensors(before, made.model) == len(before)
    own, sent = dict(made.model.named_parameters()), made.sampled_with.named_parameters()
    assert all(torch.equal(own[name], parameter) for name, parameter in sent)


def test_trl_async_log_probabilities_are_the_engines_only_with_the_right_images(
    trainer: Make,
) -> None:
    made = trainer()
    batch = _batch(made)
    pixels = batch["envkit_pixel_values"]
    assert len(batch["envkit_image_grid_thw"][0]) > 3
    _, right = _loss(made, batch)
    _, blank = _loss(made, {**batch, "envkit_pixel_values": torch.zeros_like(pixels)})
    _, turned = _loss(made, {**batch, "envkit_pixel_values": pixels.flip(1)})
    assert abs(right["kl"]) < 1e-7
    assert right["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert min(blank["kl"], turned["kl"]) > 100 * abs(right["kl"])


def test_trl_async_rows_share_a_prefix_only_with_its_images(trainer: Make) -> None:
    made = trainer()
    batch = _batch(made)
    ids, grids = batch["input_ids"][0], batch["envkit_image_grid_thw"][0]
    tokens = int((grids.prod(-1) // 4).sum())
    assert int((ids < 0).sum()) == tokens
    unique = {number for number in ids.tolist() if number < 0}
    assert len(unique) <= len(grids)  # two branches may show one image


def test_trl_async_vision_stays_frozen_if_asked_for(trainer: Make) -> None:
    made = trainer(freeze_vision=True)
    frozen = {name for name, p in made.model.named_parameters() if not p.requires_grad}
    assert frozen
    assert all("visual" in name for name in frozen)
    assert all(p.requires_grad for p in trainer().model.parameters())


def test_trl_async_text_episodes_of_a_vision_model_need_no_tensors(trainer: Make) -> None:
    made = trainer(EpisodeRequest(env_id="toy-echo-v0", task={"word": "beta"}, seed=1))
    batch = _batch(made)
    assert not [name for name in batch if name.startswith("envkit_")]
    _, metrics = _loss(made, batch)
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-4)


def test_trl_async_trainer_hands_weights_over_by_its_worker(trainer: Make) -> None:
    with pytest.raises(ConfigurationError, match="weight_transfer"):
        trainer(weight_transfer=object())


def test_trl_async_placeholders_without_images_are_a_fault() -> None:
    from envkit_conformance import shipped_recordings

    recording = next(one for one in shipped_recordings() if one.name == "images")
    settings = RowSettings(end_id=recording.filler_id, media_ids=(151655,), takes_images=True)
    samples, _ = group_samples([recording.trajectory], group_id=0, version=0, settings=settings)
    ids = samples[0].input_ids
    assert isinstance(ids, IdsWithImages)
    assert len(ids.features) == len({i.sha256 for i in recording.trajectory.images()})
    assert np.count_nonzero(ids < 0) == sum(
        feature.token_count for s in recording.trajectory.segments for feature in s.features
    )
    wrong = RowSettings(end_id=recording.filler_id, media_ids=(5,), takes_images=True)
    with pytest.raises(LedgerFault, match="placeholders"):
        group_samples([recording.trajectory], group_id=0, version=0, settings=wrong)
