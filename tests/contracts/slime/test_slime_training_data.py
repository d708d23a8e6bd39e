"""What slime makes of our samples: rewards, training data, its data source, datasets and dumps."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.gradients import LossCase, Reduction
from fakes.gradients.of_slime import arguments, written
from fakes.sglang_failures import Failure, FailurePlan
from fakes.slime_groups import group_of, load, roll, roll_group, rollout_manager
from fakes.slime_run import DOTS, ECHO, text_server, vision_server

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest, RolloutConfig
from envkit.trajectory import StopReason, check_trajectory
from envkit_conformance import Shape, shipped_recordings
from envkit_exchange import DumpFormat, SlimeOptions, TaskDraw, TaskFormat, export_tasks, read_dump
from envkit_slime.conformance import NO_STATE
from envkit_slime.generate import SlimeForm
from envkit_slime.rollout import deliver
from envkit_slime.settings import Settings

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]

QUICK_FAULTS: dict[str, Any] = {"retries": {"max_engine_retries_per_turn": 0}}


def flat(groups: list[list[Any]]) -> list[Any]:
    return [sample for group in groups for sample in group]


def test_slime_must_hold_6_a_batch_with_faults_and_images_becomes_training_data() -> None:
    plan = FailurePlan(script=[Failure.INTERNAL])
    with vision_server(
        lambda r: str(5 + r.index % 2), failures=plan, routed_experts=(2, 2)
    ) as served:
        args = served.args({**DOTS, **QUICK_FAULTS}, use_rollout_routing_replay=True)
        samples = flat(roll(args))
    assert sorted(s.status.value for s in samples).count("failed") == 1
    data = rollout_manager(args)._convert_samples_to_train_data(samples)
    assert len(data["tokens"]) == len(data["rewards"]) == 4
    for key in ("rollout_log_probs", "rollout_routed_experts", "multimodal_train_inputs"):
        assert len(data[key]) == 4
    for mask, length, logprobs in zip(
        data["loss_masks"], data["response_lengths"], data["rollout_log_probs"], strict=True
    ):
        assert len(mask) == length == len(logprobs)
    failed = next(n for n, s in enumerate(samples) if s.remove_sample)
    assert not any(data["loss_masks"][failed])
    for inputs in data["multimodal_train_inputs"]:
        assert inputs is None or all(isinstance(value, torch.Tensor) for value in inputs.values())


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus_baseline", "ppo"])
@pytest.mark.parametrize("std", [True, False])
def test_slime_rewards_without_faults_are_normalised_as_by_slime(estimator: str, std: bool) -> None:
    from slime.utils.types import Sample

    rewards = [0.0, 1.0, 1.0, 0.25, 0.0, 0.0, 0.9, 0.3]
    samples = [Sample(group_index=n // 4, index=n, reward=value) for n, value in enumerate(rewards)]
    with text_server(lambda _: "x") as served:
        flags: dict[str, Any] = {
            "advantage_estimator": estimator,
            "grpo_std_normalization": std,
            "n_samples_per_prompt": 4,
        }
        theirs = rollout_manager(served.args(ECHO, **flags))._post_process_rewards(samples)
        path = "envkit_slime.post_process_rewards"
        args = served.args(ECHO, custom_reward_post_process_path=path, **flags)
        ours = rollout_manager(args)._post_process_rewards(samples)
    assert ours[0] == theirs[0]
    assert ours[1] == pytest.approx(theirs[1], abs=1e-6)


def test_slime_a_fault_neither_pulls_its_groups_mean_nor_gets_an_advantage() -> None:
    from slime.utils.types import Sample

    fault = {"envkit_episode": {"fault": {"kind": "timeout"}, "reward": None}}
    samples = [
        Sample(group_index=0, index=0, reward=1.0),
        Sample(group_index=0, index=1, reward=0.0, metadata=fault, remove_sample=True),
        Sample(group_index=0, index=2, reward=0.0),
        Sample(group_index=1, index=3, reward=0.0, metadata=fault, remove_sample=True),
        Sample(group_index=1, index=4, reward=0.0, metadata=fault, remove_sample=True),
        Sample(group_index=1, index=5, reward=1.0),
        *(Sample(group_index=2, index=n, reward=0.0, metadata=fault) for n in (6, 7, 8)),
    ]
    with text_server(lambda _: "x") as served:
        path = "envkit_slime.post_process_rewards"
        args = served.args(ECHO, custom_reward_post_process_path=path, n_samples_per_prompt=3)
        raw, normalised = rollout_manager(args)._post_process_rewards(samples)
    assert raw == [1.0, 0.5, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert normalised[0] == pytest.approx(-normalised[2])
    assert normalised[0] > 0.7
    assert normalised[1] == 0.0
    assert normalised[3:] == [0.0] * 6


def test_slime_the_dynamic_filter_does_not_take_a_fault_for_a_reward() -> None:
    plan = FailurePlan(script=[Failure.INTERNAL])
    with text_server(lambda _: "wrong", failures=plan) as served:
        args = served.args(
            {**ECHO, **QUICK_FAULTS},
            dynamic_sampling_filter_path="envkit_slime.dynamic_filter",
        )
        from slime.rollout.filter_hub.base_types import call_dynamic_filter

        groups = roll(served.args({**ECHO, **QUICK_FAULTS}))
        outputs = [
            call_dynamic_filter(load(args.dynamic_sampling_filter_path), args, group)
            for group in groups
        ]
    assert any(s.remove_sample for s in flat(groups))
    assert [output.keep for output in outputs] == [False, False]


def test_slime_the_data_source_gives_every_task_once_an_epoch_and_comes_back(
    tmp_path: Path,
) -> None:
    with text_server(lambda _: "x") as served:
        args = served.args(
            ECHO,
            rollout_shuffle=True,
            save=str(tmp_path),
            load=str(tmp_path),
            n_samples_per_prompt=3,
        )
        source = load("envkit_slime.DataSource")(args)
        assert len(source) == 6
        first = source.get_samples(6)
        assert len({group[0].metadata["envkit"] for group in first}) == 6
        words = {group[0].metadata["envkit"].split('"word": ')[1].split("}")[0] for group in first}
        assert len(words) == 6
        assert all(len({s.metadata["envkit"] for s in group}) == 1 for group in first)
        assert [s.index for s in flat(first)] == list(range(18))
        source.add_samples([first[2]])
        source.save(7)
        following = [s.metadata["envkit"] for s in flat(source.get_samples(4))]
        again = load("envkit_slime.DataSource")(args)
        again.load(7)
        assert [s.metadata["envkit"] for s in flat(again.get_samples(4))] == following


def test_slime_logs_carry_envkits_metrics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import sys
    import types

    for name in ("wandb", "wandb.util"):
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    metrics = pytest.importorskip("slime.observability.rollout_metrics")
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(
        metrics.logging_utils, "log", lambda _args, values, step_key: logged.append(values)
    )
    plan = FailurePlan(script=[Failure.INTERNAL])
    with text_server(lambda _: "wrong", failures=plan) as served:
        args = served.args(
            {**ECHO, **QUICK_FAULTS},
            custom_rollout_log_function_path="envkit_slime.log_rollout_data",
            custom_eval_rollout_log_function_path="envkit_slime.log_eval_rollout_data",
            load_debug_rollout_data=None,
            log_reward_category=None,
            log_passrate=False,
            wandb_always_use_train_step=False,
            rollout_num_gpus=0,
        )
        samples = flat(roll(args))
        caplog.set_level(logging.INFO)
        metrics.log_rollout_data(3, args, samples, {"mine": 1.0}, 2.0)
        data = {"toys": {"rewards": [0.0] * 4, "truncated": [False] * 4, "samples": samples}}
        metrics.log_eval_rollout_data(3, args, data, {})
    assert logged[0]["mine"] == 1.0
    assert logged[0]["envkit/episodes"] == 4.0
    assert logged[0]["envkit/episodes/faulted"] == 1.0
    assert logged[0]["envkit/turns/max"] == 3.0
    assert "rollout/response_len/mean" in logged[0]
    assert logged[1]["eval/toys/envkit/stop/engine_fault/share"] == 0.25


def test_slime_evaluation_plays_the_dataset(tmp_path: Path) -> None:
    import json

    from slime.rollout.sglang_rollout import generate_rollout
    from slime.utils.eval_config import EvalDatasetConfig
    from slime.utils.http_utils import init_http_client

    rows = tmp_path / "toys.jsonl"
    word = {"env_id": "toy-echo-v0", "task": {"word": "kiwi"}}
    rows.write_text(json.dumps({"input": "unused", "metadata": {"envkit": word}}) + "\n")
    with text_server(lambda _: "kiwi") as served:
        dataset = EvalDatasetConfig(
            name="toys", path=str(rows), input_key="input", metadata_key="metadata",
            n_samples_per_eval_prompt=2, temperature=1.0, top_p=1.0, top_k=-1, max_response_len=64,
        )  # fmt: skip
        args = served.args(
            {}, eval_datasets=[dataset], multimodal_keys=None, eval_max_prompt_len=None,
            apply_chat_template=False,
        )  # fmt: skip
        init_http_client(args)
        output = generate_rollout(args, 0, None, evaluation=True)
    assert output.data["toys"]["rewards"] == [1.0, 1.0]
    assert output.data["toys"]["truncated"] == [False, False]


(REWRITTEN,) = (one.trajectory for one in shipped_recordings() if one.name == "thinking_rerender")


def test_slime_a_rewritten_history_names_the_setting_that_takes_it() -> None:
    from slime.utils.types import Sample

    args = arguments(4, LossCase(reduction=Reduction.EPISODE_MEAN))
    with pytest.raises(ConfigurationError, match="fan_out: sequences"):
        written(SlimeForm(args, state=NO_STATE), Sample, [REWRITTEN], Shape.WHOLE)
    assert len(written(SlimeForm(args, state=NO_STATE), Sample, [REWRITTEN], Shape.MERGED)) > 1


def test_slime_an_abort_of_a_rewritten_history_does_not_end_the_rollout() -> None:
    from slime.utils.types import Sample

    args = arguments(4, LossCase(reduction=Reduction.EPISODE_MEAN))
    form = SlimeForm(args, state=NO_STATE)
    settings = Settings(rollout=RolloutConfig())
    aborted = replace(REWRITTEN, stop_reason=StopReason.ABORTED, reward=None)
    sample = Sample(index=0)
    assert deliver(form, sample, [aborted], settings) is sample
    assert sample.status is Sample.Status.ABORTED
    assert sample.reward is None


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


async def test_slime_debug_dumps_of_our_samples_are_read_without_pickle(tmp_path: Path) -> None:
    data_utils = pytest.importorskip("slime.observability.rollout_data_utils")

    with vision_server(lambda _: "5") as served:
        group = await roll_group(served.args(DOTS), group_of(2))
    data_utils.save_debug_rollout_data(
        str(tmp_path / "{rollout_id}.pt"), group, rollout_id=7, evaluation=False
    )
    found = list(read_dump(tmp_path / "7.pt", DumpFormat.SLIME, SlimeOptions()))
    assert [one.train_ids() for one in found] == [tuple(sample.tokens) for sample in group]
