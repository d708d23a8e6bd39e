"""`EnvRolloutWorker` under TRL's real AsyncGRPOTrainer: its rows, with images of every turn."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import trl_run
from fakes.codecs import vision_codec
from fakes.models import tiny_model_dir
from fakes.unavailable import UnavailableEngine
from transformers import PrinterCallback
from trl.experimental.async_grpo.async_rollout_worker import (
    RolloutSample,
    TurnRecord,
    _chain_to_sequences,
)

from envkit.errors import ConfigurationError, EngineFault, LedgerFault, RunFailedError
from envkit.rollout import EpisodeRequest, ScriptedEngine
from envkit.tokens import ChatCodec
from envkit.trajectory import MergeTally, Trajectory, step_rows
from envkit_conformance import shipped_recordings
from envkit_transformers import TransformersEngine
from envkit_transformers.loading import load_model
from envkit_trl import (
    EngineWeightTransfer,
    EnvAsyncGRPOTrainer,
    EnvRolloutWorker,
    request_dataset,
    task_dataset,
)
from envkit_trl.samples import IdsWithImages, RowSettings, group_metrics, group_samples

SHORT = {"sampling": {"max_new_tokens": 6}}

MakeWorker = Callable[..., EnvRolloutWorker]

TEXT = [
    entry
    for entry in shipped_recordings()
    if not any(segment.images for segment in entry.trajectory.segments)
]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[MakeWorker]:
    """Make workers with a scripted engine; they are stopped after the test."""
    made: list[EnvRolloutWorker] = []
    codec = ChatCodec(trl_run.byte_tokenizer())

    def make(env_id: str = "toy-letters-v0", **options: Any) -> EnvRolloutWorker:
        policy = options.pop("policy", lambda context: "abc1"[: 2 + context.seed % 3])
        one = EnvRolloutWorker(
            options.pop("args", None) or trl_run.async_arguments(tmp_path),
            options.pop("dataset", None) or task_dataset(env_id),
            engine=options.pop("engine", None) or ScriptedEngine(codec, policy),
            codec=codec,
            config=options.pop("config", SHORT),
            **options,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.stop()


def _take(worker: EnvRolloutWorker, count: int) -> list[Any]:
    samples: list[Any] = []
    while len(samples) < count:
        worker.check_health(30.0)
        if not worker.rollout_buffer.empty():
            samples.append(worker.rollout_buffer.get())
        else:
            time.sleep(0.01)
    return samples


def _watch(worker: EnvRolloutWorker) -> None:
    """Look at its health as the trainer's data loader does."""
    for _ in range(3000):
        worker.check_health(30.0)
        time.sleep(0.01)


def _check_end(worker: EnvRolloutWorker, kind: type[Exception], *words: str) -> None:
    """Check that the worker ends, and why."""
    with pytest.raises(kind) as caught:
        _watch(worker)
    assert all(one in str(caught.value) for one in words)


def _turns(trajectory: Trajectory, end_id: int) -> list[TurnRecord]:
    return [
        TurnRecord(
            list(row.prompt_ids), list(row.response_ids), list(row.logprobs), list(row.loss_mask)
        )
        for row in step_rows(trajectory, filler_id=end_id)
    ]


def test_trl_must_hold_9_async_training_takes_the_workers_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trl_run.replace_gpu_parts(monkeypatch)
    folder, tokenizer = trl_run.saved_model(tmp_path / "model")
    model, processor = load_model(folder, dtype="float32")
    engine = TransformersEngine(model, processor)
    dataset = task_dataset("toy-letters-v0")
    args = trl_run.async_arguments(tmp_path)
    worker = EnvRolloutWorker(
        args,
        dataset,
        engine=engine,
        codec=ChatCodec(tokenizer),
        config=SHORT,
        groups_at_once=1,
        buffer_rows=4,
    )
    trainer = trl_run.async_trainer_for(worker, folder, dataset, tokenizer, args)
    before = trl_run.parameters(trainer.model)
    seen: list[Any] = []
    put = worker.rollout_buffer.put_nowait

    def spy(sample: Any) -> None:
        put(sample)
        seen.append(sample)

    monkeypatch.setattr(worker.rollout_buffer, "put_nowait", spy)
    trainer.train()
    assert trainer.state.global_step == 3
    assert trl_run.changed_tensors(before, trainer.model) == len(before)
    assert all(isinstance(sample, RolloutSample) for sample in seen)
    assert {sample.model_version for sample in seen} >= {1, 2}
    own, engines = dict(trainer.model.named_parameters()), dict(model.named_parameters())
    assert all(torch.equal(own[name], engines[name]) for name in own)
    assert engine.weight_version == str(trainer.model_version)
    logged = [entry for entry in trainer.state.log_history if "envkit/faults_total" in entry]
    assert logged
    assert sum(entry["envkit/faults_total"] for entry in logged) == 0


def test_trl_must_hold_9_rows_are_flat_arrays_over_the_whole_sequence(worker: MakeWorker) -> None:
    one = worker()
    one.start()
    for sample in _take(one, 8):
        columns = (sample.input_ids, sample.completion_mask, sample.old_log_probs)
        assert all(trl_run.is_flat(column) for column in columns)
        assert len({len(column) for column in columns}) == 1
        assert [column.dtype for column in columns] == [np.int64, np.int64, np.float32]
        assert sample.completion_mask[-1] == 1
        assert set(sample.completion_mask.tolist()) == {0, 1}
        assert all(sample.old_log_probs[sample.completion_mask == 0] == 0)
        assert [entry["role"] for entry in sample.prompt] == ["system", "user"]
        assert sample.completion[0]["role"] == "assistant"


@pytest.mark.parametrize("recording", TEXT, ids=lambda recording: recording.name)
def test_trl_must_hold_9_rows_equal_trls_own_merge_without_realignment(recording: Any) -> None:
    trajectory: Trajectory = recording.trajectory
    end = recording.filler_id
    samples, tally = group_samples(
        [trajectory], group_id=0, version=3, settings=RowSettings(end_id=end)
    )
    if trajectory.is_faulted or trajectory.reward is None:
        assert samples == []
        return
    rows, theirs = _chain_to_sequences(_turns(trajectory, end), "r", fork_threshold=0)
    assert theirs["realign"] == 0
    assert (tally.merged, tally.forked) == (theirs["clean"], theirs["fork"])
    assert tally.drifted_tokens == theirs["drift_tokens"]
    assert [sample.input_ids.tolist() for sample in samples] == [row.input_ids for row in rows]
    assert [sample.completion_mask.tolist() for sample in samples] == [
        row.completion_mask for row in rows
    ]
    for sample, row in zip(samples, rows, strict=True):
        assert sample.old_log_probs.tolist() == pytest.approx(row.old_log_probs, abs=1e-6)


def test_trl_must_hold_9_a_rewritten_history_forks_and_keeps_every_sampled_token() -> None:
    forked = [entry for entry in TEXT if len(entry.trajectory.sequences()) > 1]
    assert forked
    for recording in forked:
        trajectory = recording.trajectory
        samples, tally = group_samples(
            [trajectory], group_id=0, version=0, settings=RowSettings(end_id=recording.filler_id)
        )
        assert len(samples) > 1
        assert tally.forked == len(samples) - 1
        trained = sum(int(sample.completion_mask.sum()) for sample in samples)
        assert trained == sum(sum(segment.loss_mask) for segment in trajectory.segments)
        assert len({sample.advantage for sample in samples}) == 1


def test_trl_must_hold_9_a_failed_rollout_gives_no_row(worker: MakeWorker) -> None:
    one = worker("toy-flaky-letters-v0", groups_at_once=1)
    one.start()
    groups = {sample.group_id for sample in _take(one, 6)}
    assert groups == {0, 2, 3}  # the second task's environment fails
    faults = [one.metrics_queue.get() for _ in range(4)]
    assert [entry["envkit/faults_total"] for entry in faults] == [0, 2, 0, 0]


def test_trl_advantages_are_normalised_in_the_group(worker: MakeWorker) -> None:
    one = worker(groups_at_once=1, policy=lambda context: "ab1" if context.seed % 2 else "abc")
    one.start()
    for group in range(2):
        samples = _take(one, 2)
        rewards = np.array([sample.metrics["reward"] for sample in samples])
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        assert [sample.advantage for sample in samples] == pytest.approx(expected)
        assert {sample.group_id for sample in samples} == {group}


def test_trl_worker_waits_for_room_and_stops_at_once(worker: MakeWorker) -> None:
    one = worker(buffer_rows=2)
    one.start()
    _take(one, 4)
    deadline = time.monotonic() + 20
    while not one.rollout_buffer.full() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert one.rollout_buffer.qsize() == 2
    one.stop()
    one.stop()
    one.check_health(0.0)


def test_trl_worker_with_only_faults_fails(worker: MakeWorker) -> None:
    dead = request_dataset([EpisodeRequest(env_id="toy-dead-letters-v0", seed=1)])
    one = worker(dataset=dead)
    one.start()
    _check_end(
        one,
        RunFailedError,
        "the first 8 episodes of toy-dead-letters-v0 failed in the same way",
        "there is no backend",
    )


def test_trl_worker_without_room_for_any_reply_fails(worker: MakeWorker) -> None:
    limits = {"limits": {"max_context_tokens": 4}}
    one = worker(config={**SHORT, **limits}, most_empty_groups=3)
    one.start()
    _check_end(one, RunFailedError, "3 groups in a row gave no training row", "context_tokens")


def _killable(worker: MakeWorker, **breaker: float) -> tuple[UnavailableEngine, EnvRolloutWorker]:
    engine = UnavailableEngine(ChatCodec(trl_run.byte_tokenizer()), lambda _: "abc")
    config = {
        **SHORT,
        "retries": {"engine_unavailable_s": 0.0},
        "breaker": {"episodes": 6, "first_wait_s": 0.05, "longest_wait_s": 0.1, **breaker},
    }
    return engine, worker(engine=engine, config=config)


def test_trl_worker_ends_after_its_backend_was_killed(worker: MakeWorker) -> None:
    engine, one = _killable(worker, give_up_s=0.5)
    one.start()
    _take(one, 4)
    engine.stop()
    _check_end(one, RunFailedError, "episodes in a row faulted, for")


def test_trl_worker_goes_on_when_its_backend_is_back(worker: MakeWorker) -> None:
    engine, one = _killable(worker, give_up_s=60.0)
    one.start()
    _take(one, 4)
    engine.stop()
    while not (one._availability and one._availability.outage):
        time.sleep(0.01)
    time.sleep(0.2)
    one.check_health(0.1)  # waiting is not standing still
    engine.start()
    while not one.rollout_buffer.empty():
        one.rollout_buffer.get()
    _take(one, 6)


def test_trl_worker_ends_if_every_episode_breaks_the_contract(worker: MakeWorker) -> None:
    one = worker("toy-broken-letters-v0")
    one.start()
    _check_end(one, RunFailedError, "must return envkit.Turn")


def test_trl_worker_without_progress_is_unhealthy(worker: MakeWorker) -> None:
    one = worker()
    one.start()
    _take(one, 1)
    with pytest.raises(EngineFault, match="no episode has ended"):
        one.check_health(-1.0)


def test_trl_worker_refuses_images(worker: MakeWorker) -> None:
    dataset = [{"envkit": EpisodeRequest(env_id="toy-dots-v0", seed=1).to_column()}]
    one = worker(dataset=dataset)
    one.start()
    _check_end(one, ConfigurationError, "images")


def test_trl_worker_refuses_an_empty_dataset_and_foreign_arguments(
    worker: MakeWorker, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="at least one dataset row"):
        worker(dataset=iter(()))
    with pytest.raises(ConfigurationError, match="repetition_penalty"):
        worker(args=trl_run.async_arguments(tmp_path, repetition_penalty=1.5))
    with pytest.raises(ConfigurationError, match="groups_at_once"):
        worker(groups_at_once=0)


def test_trl_transfer_needs_an_engine_that_takes_weights(worker: MakeWorker) -> None:
    with pytest.raises(ConfigurationError, match="update_weights"):
        worker().weight_transfer()


def test_trl_transfer_of_foreign_weights_is_a_fault() -> None:
    model = trl_run.text_model(trl_run.byte_tokenizer())
    transfer = EngineWeightTransfer(TransformersEngine(model), version=lambda: 1)
    with pytest.raises(EngineFault, match="state_dict"):
        transfer.send_weights(iter([("no.such.weight", torch.zeros(1))]))
    transfer.destroy()
    transfer.destroy()


def test_trl_group_metrics_name_faults_and_forks() -> None:
    metrics = group_metrics([], MergeTally(forked=2, drifted_tokens=7))
    assert metrics["envkit/rows_forked_total"] == 2
    assert metrics["envkit/drifted_tokens_total"] == 7


Make = Callable[..., Any]

PICTURES = EpisodeRequest(env_id="toy-pictured-letters-v0", task={"name": "ann"})


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make trainers of the tiny Qwen2.5-VL, whose worker samples with a copy of the weights."""
    trl_run.replace_gpu_parts(monkeypatch)
    folder = str(tiny_model_dir("qwen2_5_vl"))
    made: list[tuple[Any, Any]] = []

    def make(request: EpisodeRequest = PICTURES, **options: Any) -> Any:
        model, processor = load_model(folder, dtype="float32")
        engine = TransformersEngine(model, processor)
        args = trl_run.async_arguments(tmp_path, **options.pop("arguments", {}))
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
    before = trl_run.parameters(made.model)
    made.train()
    assert made.state.global_step == 3
    assert trl_run.changed_tensors(before, made.model) == len(before)
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
