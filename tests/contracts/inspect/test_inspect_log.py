"""Logs that envkit writes, read by Inspect's own functions."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.trajectories import example
from inspect_ai.log import (
    EvalLog,
    EvalSample,
    read_eval_log,
    read_eval_log_sample_summaries,
    read_eval_log_samples,
    write_eval_log,
)
from inspect_ai.scorer import SampleScore, Score, mean, mean_score, stderr

from envkit.errors import FaultKind
from envkit.images import Image
from envkit.messages import images_of, text_of
from envkit.trajectory import FaultPlace, FaultRecord, StopReason, Trajectory, save
from envkit_conformance import shipped_recordings
from envkit_exchange import Selection, export_inspect


def written(folder: Path, trajectories: list[Trajectory], **selection: Any) -> Path:
    save(trajectories, folder / "run.jsonl")
    export_inspect(folder / "run.jsonl", folder / "run.eval", Selection(**selection))
    return folder / "run.eval"


def read(file: Path) -> tuple[EvalLog, dict[str, EvalSample]]:
    log = read_eval_log(str(file), resolve_attachments=True)
    return log, {str(sample.uuid): sample for sample in log.samples or []}


def test_every_recording_reads_back(tmp_path: Path) -> None:
    """Recordings have images, faults, rewritten histories, aborts and several roles."""
    recorded = [recording.trajectory for recording in shipped_recordings()]
    log, samples = read(written(tmp_path, recorded))
    assert len(log.samples or []) == len(recorded)
    for trajectory in recorded:
        sample = samples[trajectory.episode_id]
        assert [m.role for m in sample.messages] == [m["role"] for m in trajectory.messages]
        for ours, theirs in zip(trajectory.messages, sample.messages, strict=True):
            assert theirs.text == text_of(ours).encode("utf-8", "replace").decode()
            contents = [] if isinstance(theirs.content, str) else theirs.content
            uris = [part.image for part in contents if part.type == "image"]
            shown = [Image.from_data_uri(uri) for uri in uris]
            assert shown == list(images_of([ours]))
        if trajectory.reward is None:
            assert not sample.scores
        else:
            assert sample.scores is not None
            assert sample.scores["reward"].value == trajectory.reward
        assert (sample.error is not None) == (trajectory.fault is not None)
        if trajectory.fault is not None and sample.error is not None:
            assert trajectory.fault.message in sample.error.message
        (usage,) = sample.model_usage.values()
        assert usage.output_tokens == sum(turn.response_tokens for turn in trajectory.turns)
        assert usage.total_tokens - usage.output_tokens == sum(
            turn.prompt_tokens for turn in trajectory.turns
        )


def test_calls_are_paired_with_their_results(tmp_path: Path) -> None:
    trajectory = example()
    _, samples = read(written(tmp_path, [trajectory]))
    messages = samples[trajectory.episode_id].messages
    calls = [call for m in messages if m.role == "assistant" for call in m.tool_calls or []]
    made = [turn.tool_call for turn in trajectory.turns if turn.tool_call is not None]
    assert [(call.function, call.arguments) for call in calls] == [
        (call["name"], call["arguments"]) for call in made
    ]
    assert len({call.id for call in calls}) == len(calls) > 0


def test_groups_are_epochs_and_figures_are_those_of_inspect(tmp_path: Path) -> None:
    rewards = {"a": [1.0, 0.0, 1.0], "b": [0.0, None, 0.5], "c": [None, None, None]}
    fault = FaultRecord(where=FaultPlace.STEP, kind=FaultKind.TIMEOUT, message="no answer")
    episodes = [
        replace(
            example(10 * place + member, group_id=group, metadata={"member": member}),
            reward=reward,
            fault=fault if reward is None else None,
            stop_reason=StopReason.ENV_FAULT if reward is None else StopReason.TERMINATED,
        )
        for place, (group, earned) in enumerate(rewards.items())
        for member, reward in enumerate(earned)
    ]
    log, samples = read(written(tmp_path, episodes[::-1]))
    assert log.eval.config.epochs == 3
    for episode in episodes:
        sample = samples[episode.episode_id]
        assert (sample.id, sample.epoch) == (episode.group_id, episode.metadata["member"] + 1)
    reduce, values = mean_score(), []
    for earned in rewards.values():
        scored = [Score(value=reward) for reward in earned if reward is not None]
        values += [SampleScore(score=reduce(scored))] if scored else []
    assert log.results is not None
    (found,) = log.results.scores
    assert found.metrics["mean"].value == pytest.approx(mean()(values))
    assert found.metrics["stderr"].value == pytest.approx(stderr()(values))
    assert (found.scored_samples, found.unscored_samples) == (2, 1)
    assert log.status == "success"


def test_limits_and_aborts_are_named(tmp_path: Path) -> None:
    stops = [stop for stop in StopReason if not stop.is_fault]
    episodes = [
        replace(
            example(number), stop_reason=stop, reward=None if stop is StopReason.ABORTED else 0.0
        )
        for number, stop in enumerate(stops)
    ]
    log, samples = read(written(tmp_path, episodes))
    assert log.status == "cancelled"
    for episode in episodes:
        limit = samples[episode.episode_id].limit
        assert (limit is None) == (episode.stop_reason is StopReason.TERMINATED)
        if limit is not None:
            assert limit.reason == f"envkit: {episode.stop_reason.value}"


def test_summaries_samples_and_a_rewritten_log_agree(tmp_path: Path) -> None:
    recorded = [recording.trajectory for recording in shipped_recordings()]
    file = written(tmp_path, recorded, only_terminated=True)
    log, samples = read(file)
    assert 0 < len(samples) < len(recorded)
    streamed = list(read_eval_log_samples(str(file), all_samples_required=False))
    assert {sample.uuid for sample in streamed} == set(samples)
    # Inspect's own summary of each sample; ours truncates the opening and omits images.
    for summary in read_eval_log_sample_summaries(str(file)):
        theirs = samples[str(summary.uuid)].summary()
        assert summary.model_dump(exclude={"input"}) == theirs.model_dump(exclude={"input"})
    write_eval_log(log, str(tmp_path / "again.json"))
    again = read_eval_log(str(tmp_path / "again.json"))
    assert again.results == log.results
    assert [sample.scores for sample in again.samples or []] == [
        sample.scores for sample in log.samples or []
    ]
    assert all(math.isfinite(usage.total_tokens) for usage in again.stats.model_usage.values())
