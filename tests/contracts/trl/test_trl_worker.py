"""`EnvRolloutWorker` under TRL's real AsyncGRPOTrainer, and its rows against TRL's own merge."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.trl_run import (
    async_arguments,
    async_trainer_for,
    byte_tokenizer,
    changed_tensors,
    is_flat,
    parameters,
    replace_gpu_parts,
    saved_model,
    text_model,
)
from fakes.unavailable import UnavailableEngine
from trl.experimental.async_grpo.async_rollout_worker import (
    RolloutSample,
    TurnRecord,
    _chain_to_sequences,
)

from envkit.errors import ConfigurationError, EngineFault, RunFailedError
from envkit.rollout import EpisodeRequest, ScriptedEngine
from envkit.tokens import ChatCodec
from envkit.trajectory import MergeTally, Trajectory, step_rows
from envkit_conformance import shipped_recordings
from envkit_transformers import TransformersEngine
from envkit_transformers.loading import load_model
from envkit_trl import EngineWeightTransfer, EnvRolloutWorker, request_dataset, task_dataset
from envkit_trl.samples import RowSettings, group_metrics, group_samples

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
    codec = ChatCodec(byte_tokenizer())

    def make(env_id: str = "toy-letters-v0", **options: Any) -> EnvRolloutWorker:
        policy = options.pop("policy", lambda context: "abc1"[: 2 + context.seed % 3])
        one = EnvRolloutWorker(
            options.pop("args", None) or async_arguments(tmp_path),
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


def _raised(worker: EnvRolloutWorker) -> BaseException:
    """Wait until the worker ends, as the trainer's data loader would, and return why."""
    for _ in range(3000):
        try:
            worker.check_health(30.0)
        except Exception as error:  # noqa: BLE001  # the test looks at it
            return error
        time.sleep(0.01)
    raise AssertionError("the worker did not end")


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
    replace_gpu_parts(monkeypatch)
    folder, tokenizer = saved_model(tmp_path / "model")
    model, processor = load_model(folder, dtype="float32")
    engine = TransformersEngine(model, processor)
    dataset = task_dataset("toy-letters-v0")
    args = async_arguments(tmp_path)
    worker = EnvRolloutWorker(
        args,
        dataset,
        engine=engine,
        codec=ChatCodec(tokenizer),
        config=SHORT,
        groups_at_once=1,
        buffer_rows=4,
    )
    trainer = async_trainer_for(worker, folder, dataset, tokenizer, args)
    before = parameters(trainer.model)
    seen: list[Any] = []
    put = worker.rollout_buffer.put_nowait

    def spy(sample: Any) -> None:
        put(sample)
        seen.append(sample)

    monkeypatch.setattr(worker.rollout_buffer, "put_nowait", spy)
    trainer.train()
    assert trainer.state.global_step == 3
    assert changed_tensors(before, trainer.model) == len(before)
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
        assert all(is_flat(column) for column in columns)
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
    error = _raised(one)
    assert isinstance(error, RunFailedError)
    assert "the first 8 episodes of toy-dead-letters-v0 failed in the same way" in str(error)
    assert "there is no backend" in str(error)


def test_trl_worker_without_room_for_any_reply_fails(worker: MakeWorker) -> None:
    limits = {"limits": {"max_context_tokens": 4}}
    one = worker(config={**SHORT, **limits}, most_empty_groups=3)
    one.start()
    error = _raised(one)
    assert isinstance(error, RunFailedError)
    assert "3 groups in a row gave no training row" in str(error)
    assert "context_tokens" in str(error)


def _killable(worker: MakeWorker, **breaker: float) -> tuple[UnavailableEngine, EnvRolloutWorker]:
    engine = UnavailableEngine(ChatCodec(byte_tokenizer()), lambda _: "abc")
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
    error = _raised(one)
    assert isinstance(error, RunFailedError)
    assert "episodes in a row faulted, for" in str(error)


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
    error = _raised(one)
    assert isinstance(error, RunFailedError)
    assert "must return envkit.Turn" in str(error)


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
    error = _raised(one)
    assert isinstance(error, ConfigurationError)
    assert "images" in str(error)


def test_trl_worker_refuses_an_empty_dataset_and_foreign_arguments(
    worker: MakeWorker, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="at least one dataset row"):
        worker(dataset=iter(()))
    with pytest.raises(ConfigurationError, match="repetition_penalty"):
        worker(args=async_arguments(tmp_path, repetition_penalty=1.5))
    with pytest.raises(ConfigurationError, match="groups_at_once"):
        worker(groups_at_once=0)


def test_trl_transfer_needs_an_engine_that_takes_weights(worker: MakeWorker) -> None:
    with pytest.raises(ConfigurationError, match="update_weights"):
        worker().weight_transfer()


def test_trl_transfer_of_foreign_weights_is_a_fault() -> None:
    model = text_model(byte_tokenizer())
    transfer = EngineWeightTransfer(TransformersEngine(model), version=lambda: 1)
    with pytest.raises(EngineFault, match="state_dict"):
        transfer.send_weights(iter([("no.such.weight", torch.zeros(1))]))
    transfer.destroy()
    transfer.destroy()


def test_trl_group_metrics_name_faults_and_forks() -> None:
    metrics = group_metrics([], MergeTally(forked=2, drifted_tokens=7))
    assert metrics["envkit/rows_forked_total"] == 2
    assert metrics["envkit/drifted_tokens_total"] == 7
