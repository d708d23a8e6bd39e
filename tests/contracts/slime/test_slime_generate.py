"""`envkit_slime.generate` under slime's real generate_and_rm and generate_and_rm_group."""

import asyncio
import copy
import pickle
import threading
from itertools import chain, pairwise
from typing import Any

import pytest
import torch
from fakes.codecs import vision_codec
from fakes.envs import EchoEnv
from fakes.lost_backend import LOST, PATIENT, QUICK, check_ends, check_waits, register_lost
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_model import FakeRequest
from fakes.slime_groups import group_of, params, roll_group
from fakes.slime_run import DOTS, ECHO, text_server, vision_server

from envkit.errors import ConfigurationError
from envkit.trajectory import verify_file

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]


def say_five(_request: FakeRequest) -> str:
    return "5"


def check_columns(sample: Any) -> None:
    """What slime's own validator and its conversion to training data ask of every sample."""
    sample._validate_response_metadata_lengths()
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length > 0
    assert len(sample.tokens) > sample.response_length
    assert isinstance(sample.reward, float)
    for mask, logprob in zip(sample.loss_mask, sample.rollout_log_probs, strict=True):
        assert mask or logprob == 0.0 or sample.remove_sample


async def test_slime_must_hold_1_one_sample_comes_back_for_each_trajectory() -> None:
    from slime.utils.types import Sample

    with vision_server(say_five) as served:
        given = group_of(3)
        group = await roll_group(served.args(DOTS, n_samples_per_prompt=3), given)
    assert [type(member) for member in group] == [Sample] * 3
    assert all(member is original for member, original in zip(group, given, strict=True))


async def test_slime_must_hold_5_and_12_masks_log_probs_and_images_line_up(tmp_path: Any) -> None:
    with vision_server(say_five) as served:
        args = served.args({**DOTS, "record_dir": str(tmp_path)})
        group = await roll_group(args, group_of())
        payloads = served.fake.payloads()
    pad = vision_codec().media_ids[0]
    for sample in group:
        check_columns(sample)
        assert sample.status in (sample.Status.COMPLETED, sample.Status.TRUNCATED)
        grid = sample.multimodal_train_inputs["image_grid_thw"]
        pixels = sample.multimodal_train_inputs["pixel_values"]
        assert isinstance(grid, torch.Tensor)
        assert isinstance(pixels, torch.Tensor)
        assert len(pixels) == int(grid.prod(dim=1).sum())
        assert sample.tokens.count(pad) == int(grid.prod(dim=1).sum()) // 4
        assert len(grid) == 4 == sample.metadata["envkit_episode"]["turns"]
        # Observation tokens, including images, are neither trained on nor scored.
        start = len(sample.tokens) - sample.response_length
        for place, token in enumerate(sample.tokens[start:]):
            assert token != pad or sample.loss_mask[place] == 0
        assert sum(sample.loss_mask) == sum(len(vision_codec().encode_reply("5")) for _ in range(4))
    # Every request carried all images so far, one placeholder each.
    turns = sorted(len(payload["image_data"]) for payload in payloads if "image_data" in payload)
    assert turns == [1, 1, 2, 2, 3, 3, 4, 4]
    assert all(list(p["input_ids"]).count(pad) == len(p["image_data"]) for p in payloads)
    report = verify_file(tmp_path)
    assert report.is_sound
    assert report.trajectories == 2


@pytest.mark.parametrize("at", ["reset", "step", "bug"])
async def test_slime_must_hold_2_an_environment_failure_is_a_failed_sample(at: str) -> None:
    with text_server(lambda _: "x") as served:
        args = served.args({"env_id": "toy-broken-v0", "env_kwargs": {"at": at}})
        group = await roll_group(args, group_of())
    for sample in group:
        check_columns(sample)
        assert sample.status is sample.Status.FAILED
        assert sample.remove_sample
        assert sample.reward == 0.0
        assert not any(sample.loss_mask)
        assert sample.metadata["envkit_episode"]["fault"]["message"]


@pytest.mark.parametrize(
    "failure",
    [Failure.INTERNAL, Failure.WRONG_PROMPT_TOKENS, Failure.NOT_JSON, Failure.MISSING_LOGPROB],
)
async def test_slime_must_hold_2_a_server_failure_is_a_failed_sample(failure: Failure) -> None:
    plan = FailurePlan(rates={failure: 1.0})
    retries = {"max_engine_retries_per_turn": 0}
    with text_server(lambda _: "x", failures=plan) as served:
        args = served.args({**ECHO, "retries": retries})
        group = await roll_group(args, group_of())
    for sample in group:
        check_columns(sample)
        assert sample.status is sample.Status.FAILED
        assert sample.remove_sample


async def test_slime_must_hold_3_no_failure_is_called_an_abort() -> None:
    # The server abandons every request by itself, without slime's request.
    plan = FailurePlan(rates={Failure.QUEUE_ABORT: 1.0})
    with text_server(lambda _: "x", failures=plan) as served:
        args = served.args({**ECHO, "max_server_aborts": 2})
        group = await roll_group(args, group_of())
    assert [sample.status for sample in group] == [group[0].Status.FAILED] * 2
    assert all(s.metadata["envkit_episode"]["retries"]["server_abort"] == 3 for s in group)


async def test_slime_an_abort_around_a_weight_update_is_resumed() -> None:
    plan = FailurePlan(script=[Failure.QUEUE_ABORT, None, Failure.QUEUE_ABORT])
    with text_server(lambda _: "wrong", failures=plan) as served:
        group = await roll_group(served.args(ECHO), group_of(1))
    assert group[0].status is group[0].Status.TRUNCATED
    assert group[0].metadata["envkit_episode"]["retries"]["server_abort"] == 2
    assert group[0].metadata["envkit_episode"]["turns"] == 3
    check_columns(group[0])


async def test_slime_must_hold_6_failed_and_good_samples_have_the_same_columns() -> None:
    settings: dict[str, Any] = {"routed_experts": (2, 2), "returns_top_p": True}
    with text_server(lambda _: "wrong", **settings) as served:
        flags: dict[str, Any] = {"use_rollout_routing_replay": True, "rollout_top_p": 0.9}
        good = await roll_group(served.args(ECHO, **flags), group_of(1))
        broken = {"env_id": "toy-broken-v0", "env_kwargs": {"at": "reset"}}
        bad = await roll_group(served.args(broken, **flags), group_of(1, group=1))
    for sample in (*good, *bad):
        check_columns(sample)
        assert torch.as_tensor(sample.rollout_routed_experts).shape == (
            len(sample.tokens) - 1, 2, 2,
        )  # fmt: skip
        assert len(sample.rollout_top_p_token_offsets) == sample.response_length + 1
        assert sample.rollout_top_p_token_offsets[-1] == len(sample.rollout_top_p_token_ids)
        assert sample.train_metadata is None
        assert sample.teacher_log_probs is None


async def test_slime_must_hold_7_a_trajectory_ends_on_model_tokens() -> None:
    from slime.rollout.sglang_rollout import generate_and_rm_group

    # An observation that does not fit ends the episode before it.
    with text_server(lambda _: "wrong word again") as served:
        sizes: list[int] = []
        for budget in range(8, 120, 16):
            args = served.args(ECHO)
            given = {**params(args), "max_new_tokens": budget}
            sample = (await generate_and_rm_group(args, group_of(1, group=budget), given))[0]
            assert sample.loss_mask[-1] == 1
            assert sample.response_length <= budget
            sizes.append(sample.response_length)
    assert len(set(sizes)) >= 3


async def test_slime_must_hold_8_sampling_params_are_never_changed() -> None:
    from slime.rollout.sglang_rollout import generate_and_rm

    with text_server(lambda _: "wrong") as served:
        args = served.args(ECHO)
        shared = params(args)  # as in slime's evaluation: one dict for all samples
        before = copy.deepcopy(shared)
        await asyncio.gather(
            *(generate_and_rm(args, sample, shared, evaluation=True) for sample in group_of(4))
        )
        sent = served.fake.payloads()[0]["sampling_params"]
    assert shared == before
    assert sent["temperature"] == 1.0
    assert sent["top_p"] == 1.0
    assert sent["top_k"] == -1
    assert 0 < sent["max_new_tokens"] <= before["max_new_tokens"]


class SlowEnv(EchoEnv):
    """Blocks its thread in every step, and notes on which one that was."""

    threads: set[int]
    gate = threading.Event()

    def on_turn(self, response_text: str) -> Any:
        SlowEnv.threads.add(threading.get_ident())
        if not SlowEnv.gate.wait(20):
            raise RuntimeError("the event loop never came round to open the gate")
        return super().on_turn(response_text)


async def test_slime_must_hold_9_a_blocking_step_does_not_stop_the_event_loop() -> None:
    import gymnasium

    from envkit.registration import register

    if "envkit/toy-slow-v0" not in gymnasium.registry:
        register("toy-slow-v0", entry_point=SlowEnv)
    SlowEnv.threads, SlowEnv.gate = set(), threading.Event()
    with text_server(lambda _: "wrong") as served:
        task = asyncio.create_task(roll_group(served.args({"env_id": "toy-slow-v0"}), group_of()))
        while not SlowEnv.threads:  # this loop keeps running while the step blocks
            await asyncio.sleep(0.01)
        SlowEnv.gate.set()
        await task
    assert threading.get_ident() not in SlowEnv.threads


async def test_slime_must_hold_10_the_status_is_the_episodes_and_not_the_last_turns() -> None:
    # Every turn ends with a stop token, so slime's own bookkeeping says COMPLETED.
    with text_server(lambda _: "wrong") as served:
        truncated = (await roll_group(served.args(ECHO), group_of(1)))[0]
        limited = {**ECHO, "limits": {"max_turns": 1}}
        short = (await roll_group(served.args(limited), group_of(1, group=1)))[0]
    with text_server(_word) as served:
        done = (await roll_group(served.args(ECHO), group_of(1, group=2)))[0]
    assert truncated.status is truncated.Status.TRUNCATED
    assert short.status is short.Status.TRUNCATED
    assert (done.status, done.reward) == (done.Status.COMPLETED, 1.0)


def _word(request: FakeRequest) -> str:
    from fakes.codecs import text_codec

    said = text_codec().decode(request.wire_ids)
    return said.rpartition("Repeat this word: ")[2].split("<")[0].split("\n")[0].strip()


async def test_slime_must_hold_11_media_placeholders_are_banned() -> None:
    codec = vision_codec()

    def placeholders(_request: FakeRequest) -> list[int]:
        return [*codec.media_ids, *codec.encode_reply("5")]

    with vision_server(placeholders) as served:
        group = await roll_group(served.args(DOTS), group_of(1))
        bias = served.fake.payloads()[0]["sampling_params"]["logit_bias"]
    assert set(bias) >= {str(token) for token in codec.media_ids}
    sample = group[0]
    start = len(sample.tokens) - sample.response_length
    sampled = [t for t, m in zip(sample.tokens[start:], sample.loss_mask, strict=True) if m]
    assert not set(sampled) & set(codec.media_ids)


async def test_slime_every_request_carries_the_samples_session() -> None:
    from slime.rollout.sglang_rollout import generate_and_rm

    with text_server(lambda _: "wrong") as served:
        args = served.args(ECHO)
        group = await roll_group(args, group_of())
        evaluated = group_of(1, group=9)[0]
        await generate_and_rm(args, evaluated, params(args), evaluation=True)
        headers = [
            entry.headers.get("X-SMG-Routing-Key")
            for entry in served.fake.log
            if entry.path == "/generate"
        ]
    assert sorted(set(headers)) == sorted(  # type: ignore[type-var]
        {sample.session_id for sample in (*group, evaluated)}
    )
    assert len(headers) == 9


async def test_slime_statistics_and_spans_are_those_that_slime_logs() -> None:
    settings = {"extra_meta": {"spec_accept_token_num": 3, "spec_draft_token_num": 5}}
    with text_server(lambda _: "wrong", **settings) as served:
        args = served.args(ECHO, sglang_speculative_algorithm="EAGLE")
        sample = (await roll_group(args, group_of(1)))[0]
    from slime.utils.types import Sample

    assert sample.spec_info.spec_accept_token_num == 9
    assert sample.spec_info.completion_token_num == sum(sample.loss_mask)
    assert sample.prefix_cache_info.cached_tokens > 0
    assert sample.prefix_cache_info.total_prompt_tokens > sample.prefix_cache_info.cached_tokens
    assert sample.weight_versions == ["default"] * 3
    assert sample.non_generation_time > 0
    ends = [
        event
        for event in sample.trace["events"]
        if event["type"] == "span_end" and event["name"] == "sglang_generate"
    ]
    assert len(ends) == 3
    assert all(event["attrs"]["completion_tokens"] > 0 for event in ends)
    again = Sample.from_dict(pickle.loads(pickle.dumps(sample.to_dict())))
    assert again.metadata == sample.metadata


async def test_slime_routed_experts_cover_every_token_and_are_asked_for_once() -> None:
    with vision_server(say_five, routed_experts=(2, 2)) as served:
        sample = (
            await roll_group(served.args(DOTS, use_rollout_routing_replay=True), group_of(1))
        )[0]
        starts = [p.get("routed_experts_start_len", 0) for p in served.fake.payloads()]
    assert sample.rollout_routed_experts.shape == (len(sample.tokens) - 1, 2, 2)
    assert starts[0] == 0
    assert all(one < other for one, other in pairwise(starts))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"use_rollout_routing_replay": True}, "--enable-return-routed-experts"),
        ({"rollout_top_p": 0.9}, "slime's patched SGLang"),
    ],
)
async def test_slime_a_server_without_replay_data_is_named(
    flags: dict[str, Any], said: str
) -> None:
    with text_server(lambda _: "wrong") as served:
        sample = (await roll_group(served.args(ECHO, **flags), group_of(1)))[0]
    assert sample.status is sample.Status.FAILED
    assert said in sample.metadata["envkit_episode"]["fault"]["message"]
    check_columns(sample)


async def test_slime_a_reward_key_gets_a_mapping() -> None:
    with text_server(_word) as served:
        args = served.args(ECHO, reward_key="score", eval_reward_key="score")
        sample = (await roll_group(args, group_of(1)))[0]
    assert sample.reward == {"score": 1.0}
    assert sample.get_reward_value(args) == 1.0


async def test_slime_group_rm_takes_the_survivors_mean_for_a_fault() -> None:
    plan = FailurePlan(script=[Failure.INTERNAL])
    envkit = {**ECHO, "retries": {"max_engine_retries_per_turn": 0}}
    with text_server(_word, failures=plan) as served:
        args = served.args(envkit, group_rm=True, custom_rm_path="envkit_slime.reward")
        group = await roll_group(args, group_of(3))
    assert sorted(sample.status.value for sample in group) == ["completed", "completed", "failed"]
    assert [sample.reward for sample in group] == [1.0] * 3


async def test_slime_fan_out_by_opt_in_gives_siblings_of_one_rollout() -> None:
    data_utils = pytest.importorskip("slime.observability.rollout_data_utils")

    with text_server(lambda _: "wrong") as served:
        flags = {"custom_reward_post_process_path": "envkit_slime.post_process_rewards"}
        args = served.args({**ECHO, "fan_out": "turns"}, **flags)
        group = await roll_group(args, group_of(2))
        with pytest.raises(ConfigurationError, match="--partial-rollout"):
            await roll_group(
                served.args({**ECHO, "fan_out": "turns"}, partial_rollout=True),
                group_of(1, group=1),
            )
    assert [len(members) for members in group] == [3, 3]
    data_utils.validate_rollout_id_annotated([group])
    for members in group:
        for sample in members:
            check_columns(sample)
            assert set(sample.loss_mask) == {1}
        assert len({sample.rollout_id for sample in members}) == 1
        lengths = [len(sample.tokens) for sample in members]
        assert lengths == sorted(lengths)


async def test_slime_fan_out_without_its_own_normalisation_is_refused() -> None:
    with text_server(lambda _: "wrong") as served:
        fanned_out = {**ECHO, "fan_out": "turns"}
        with pytest.raises(ConfigurationError, match="--custom-reward-post-process-path"):
            await roll_group(served.args(fanned_out), group_of(1))
        plain = await roll_group(
            served.args(fanned_out, rewards_normalization=False), group_of(1, group=1)
        )
    assert len(plain[0]) == 3


async def test_slime_a_fault_is_one_row_under_fan_out() -> None:
    flags = {"custom_reward_post_process_path": "envkit_slime.post_process_rewards"}
    retries = {"max_engine_retries_per_turn": 0}
    plan = FailurePlan(script=[None, None, Failure.INTERNAL])
    with text_server(lambda _: "wrong", failures=plan) as served:
        args = served.args({**ECHO, "fan_out": "turns", "retries": retries}, **flags)
        (siblings,) = await roll_group(args, group_of(1))
    (only,) = siblings
    check_columns(only)
    assert only.status is only.Status.FAILED
    assert only.metadata["envkit_episode"]["turns"] > 1
    assert not any(only.loss_mask)


async def test_slime_an_unexpected_error_under_fan_out_leaves_a_batch_that_slime_flattens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data_utils = pytest.importorskip("slime.observability.rollout_data_utils")

    from envkit_slime import rollout

    def written(form: Any, sample: Any, *args: Any, **options: Any) -> Any:
        if sample.index == 0:
            raise ValueError("no such tensor")
        return deliver(form, sample, *args, **options)

    deliver = rollout.deliver
    monkeypatch.setattr(rollout, "deliver", written)
    flags = {"custom_reward_post_process_path": "envkit_slime.post_process_rewards"}
    with text_server(lambda _: "wrong") as served:
        data: Any = [
            await roll_group(served.args({**ECHO, "fan_out": "turns"}, **flags), group_of(2))
        ]
    data_utils.validate_rollout_id_annotated(data)
    while isinstance(data[0], list):  # slime/ray/rollout.py, _get_rollout_data
        data = list(chain.from_iterable(data))
    assert [sample.status.value for sample in data] == ["failed", *["truncated"] * 3]


async def test_slime_stock_normalisation_of_faults_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from envkit_slime.checks import _warn_once

    def warnings() -> int:
        return sum("--custom-reward-post-process-path" in one.message for one in caplog.records)

    _warn_once.cache_clear()
    path = "envkit_slime.post_process_rewards"
    with text_server(lambda _: "wrong") as served:
        await roll_group(served.args(ECHO, custom_reward_post_process_path=path), group_of(1))
        await roll_group(served.args(ECHO, rewards_normalization=False), group_of(1))
        assert warnings() == 0
        await roll_group(served.args(ECHO), group_of(2))
    assert warnings() == 1


async def test_slime_ends_after_its_backend_was_killed() -> None:
    register_lost()
    with text_server(lambda _: "x") as served:
        args = served.args({"env_id": LOST, **QUICK})
        assert [one.reward for one in await roll_group(args, group_of())] == [1.0] * 2
        await check_ends(lambda: roll_group(args, group_of()))


async def test_slime_goes_on_when_its_backend_is_back() -> None:
    register_lost()
    with text_server(lambda _: "x") as served:
        args = served.args({"env_id": LOST, **PATIENT})
        groups = await check_waits(lambda: roll_group(args, group_of()), steps=4)
        assert all(one.remove_sample for group in groups for one in group)
        assert [one.reward for one in await roll_group(args, group_of())] == [1.0] * 2
