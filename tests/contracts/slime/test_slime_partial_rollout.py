"""Aborts and partial rollouts through slime's real generate_rollout, abort() and data source."""

import asyncio
import pickle
import random
from typing import Any, ClassVar

import pytest
from fakes.codecs import text_codec
from fakes.envs import DotsEnv, EchoEnv
from fakes.sglang_model import FakeRequest
from fakes.slime_run import DOTS, ECHO, Served, text_server, vision_server

from envkit.env import Capabilities, Turn
from envkit.errors import ConfigurationError
from envkit.tasks import Task
from envkit.trajectory import SegmentKind, read_trajectories, verify_file

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]

REPLY = "five or six or seven, who knows"


def say(_request: FakeRequest) -> str:
    return REPLY


def fresh_group(size: int = 2, *, group: int = 0) -> list[Any]:
    from slime.utils.types import Sample

    return [Sample(group_index=group, index=group * size + n) for n in range(size)]


def through_pickle(group: list[Any]) -> list[Any]:
    """Send samples where slime's buffer and its checkpoints send them."""
    from slime.utils.types import Sample

    return [Sample.from_dict(pickle.loads(pickle.dumps(s.to_dict()))) for s in group]


async def abort_like_slime(args: Any, served: Served) -> None:
    """Do what slime's abort() does to flag and servers, without its own task set."""
    from slime.backends.sglang_utils.server_control import abort_servers_until_idle
    from slime.rollout.sglang_rollout import GenerateState

    GenerateState(args).aborted = True
    await abort_servers_until_idle([served.url])


async def roll_until(
    args: Any, group: list[Any], served: Served, tokens: int | None = None
) -> list[Any]:
    """Roll a group and abort it once the server has sampled some more tokens; None never does."""
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group
    from slime.utils.http_utils import init_http_client

    init_http_client(args)
    state, worker = GenerateState(args), served.fake.worker
    target = None if tokens is None else worker.total_tokens + tokens
    task = asyncio.create_task(generate_and_rm_group(args, group, state.sampling_params.copy()))
    while not task.done():
        await asyncio.sleep(0.005)
        if target is not None and worker.total_tokens >= target:
            await abort_like_slime(args, served)
            break
    result = await task
    state.reset()
    return result


async def test_slime_must_hold_4_nothing_is_generated_once_the_flag_is_up() -> None:
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group

    with text_server(say) as served:
        args = served.args(ECHO, partial_rollout=True)
        state = GenerateState(args)

        def raise_flag(_request: FakeRequest) -> str:
            state.aborted = True
            return REPLY

        served.fake.worker._script = raise_flag
        group = await generate_and_rm_group(args, fresh_group(1), state.sampling_params.copy())
        asked = len(served.fake.payloads())
    # The pending reply is kept; its step waits, and no turn follows.
    assert asked == 1
    assert group[0].status is group[0].Status.ABORTED
    assert group[0].reward is None
    assert group[0].response_length == sum(group[0].loss_mask) > 0
    assert group[0].metadata["envkit_episode"]["seconds"]["env"] == (0.0,)


class Flagging(DotsEnv):
    """Raises slime's flag inside a step, and counts its steps."""

    steps = 0
    state: Any = None

    def on_turn(self, response_text: str) -> Any:
        Flagging.steps += 1
        if Flagging.steps == 1:
            Flagging.state.aborted = True
        return super().on_turn(response_text)


async def test_slime_must_hold_4_a_flag_during_a_step_ends_the_episode_after_it(
    tmp_path: Any,
) -> None:
    import gymnasium
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group

    from envkit.registration import register

    if "envkit/toy-flagging-v0" not in gymnasium.registry:
        register("toy-flagging-v0", entry_point=Flagging)
    with vision_server(say) as served:
        envkit = {**DOTS, "env_id": "toy-flagging-v0", "record_dir": str(tmp_path)}
        args = served.args(envkit, partial_rollout=True)
        state = Flagging.state = GenerateState(args)
        Flagging.steps = 0
        group = await generate_and_rm_group(args, fresh_group(1), state.sampling_params.copy())
        asked = len(served.fake.payloads())
        assert (asked, Flagging.steps) == (1, 1)
        assert group[0].status is group[0].Status.ABORTED
        assert group[0].loss_mask[-1] == 1  # the image after the reply is sent by the resume
        state.reset()
        again = await generate_and_rm_group(
            args, through_pickle(group), state.sampling_params.copy()
        )
    assert again[0].status is again[0].Status.TRUNCATED
    assert again[0].metadata["envkit_episode"]["turns"] == 4
    assert verify_file(tmp_path).is_sound


async def test_slime_must_hold_3_aborted_is_the_status_only_while_slime_aborts() -> None:
    with vision_server(say, token_s=0.02) as served:
        args = served.args(DOTS, partial_rollout=True)
        group = await roll_until(args, fresh_group(), served, 5)
        assert {s.status for s in group} == {group[0].Status.ABORTED}
        assert all(s.reward is None for s in group)
        again = await roll_until(args, through_pickle(group), served)
    assert {s.status for s in again} == {again[0].Status.TRUNCATED}


@pytest.mark.parametrize("mask_old", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_slime_a_rollout_with_images_aborted_anywhere_is_resumed_exactly(
    seed: int, mask_old: bool, tmp_path: Any
) -> None:
    rng = random.Random(seed)
    with vision_server(say, token_s=0.015) as served:
        args = served.args(
            {**DOTS, "record_dir": str(tmp_path)},
            partial_rollout=True,
            mask_offpolicy_in_partial_rollout=mask_old,
        )
        group = fresh_group()
        version = 0
        while True:
            version += 1
            served.fake.settings.weight_version = str(version)
            before = [(list(s.tokens), s.response_length) for s in group]
            tokens = rng.randint(1, 40) if version < 5 else None
            group = await roll_until(args, through_pickle(group), served, tokens)
            for sample, (tokens, length) in zip(group, before, strict=True):
                assert sample.tokens[: len(tokens)] == tokens
                assert sample.status is not sample.Status.FAILED, sample.metadata
                if mask_old and sample.status is sample.Status.ABORTED:
                    assert not any(sample.loss_mask[:length])
            if all(s.status is not s.Status.ABORTED for s in group):
                break
            served.fake.settings.token_s = rng.choice([0.0, 0.005, 0.02])
    check_finished(group, tmp_path, mask_old=mask_old)
    assert version > 1


def check_finished(group: list[Any], folder: Any, *, mask_old: bool) -> None:
    """The samples are those of the recorded ledgers, which a check without a model accepts."""
    report = verify_file(folder)
    assert report.is_sound, str(report)
    ledgers = {t.metadata["sample_index"]: t for t in read_trajectories(folder)}
    for sample in group:
        trajectory = ledgers[sample.index]
        assert tuple(sample.tokens) == trajectory.train_ids()
        assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
        start = len(sample.tokens) - sample.response_length
        assert tuple(sample.rollout_log_probs) == trajectory.logprobs()[start:]
        if not mask_old:
            assert tuple(sample.loss_mask) == trajectory.loss_mask()[start:]
        replies = [s for s in trajectory.segments if s.kind is SegmentKind.MODEL]
        assert sample.weight_versions == [s.weight_version for s in replies]
        assert len(sample.multimodal_train_inputs["image_grid_thw"]) == len(trajectory.images())
        assert sample.metadata["envkit_episode"]["turns"] == 4
        assert "envkit_state" not in sample.metadata
        sample._validate_response_metadata_lengths()


async def test_slime_masked_tokens_of_older_weights_stay_masked_and_new_ones_count() -> None:
    with text_server(say, token_s=0.03) as served:
        args = served.args(ECHO, partial_rollout=True, mask_offpolicy_in_partial_rollout=True)
        served.fake.settings.weight_version = "1"
        group = await roll_until(args, fresh_group(1), served, 5)
        old = group[0].response_length
        assert group[0].status is group[0].Status.ABORTED
        assert old > 0
        served.fake.settings.weight_version = "2"
        served.fake.settings.token_s = 0.0
        sample = (await roll_until(args, through_pickle(group), served))[0]
    assert sample.loss_mask[:old] == [0] * old
    assert sum(sample.loss_mask[old:]) > 0
    assert sample.weight_versions[0] == "1"
    assert sample.weight_versions[-1] == "2"
    # One version for each run of sampled tokens: the cut reply has two.
    assert sample.weight_versions == ["1", "2", "2", "2"]


async def test_slime_an_abort_in_the_queue_leaves_a_sample_that_restarts() -> None:
    with text_server(say, max_running=1, token_s=0.05) as served:
        args = served.args(ECHO, partial_rollout=True)
        group = await roll_until(args, fresh_group(3), served, 3)
        untouched = [s for s in group if s.response_length == 0]
        assert len(untouched) == 2
        assert all(s.status is s.Status.ABORTED and s.tokens == [] for s in untouched)
        served.fake.settings.token_s = 0.0
        again = await roll_until(args, through_pickle(group), served)
    assert {s.status for s in again} == {again[0].Status.TRUNCATED}


async def test_slime_a_kept_episode_that_was_changed_is_played_from_its_start() -> None:
    with text_server(say, token_s=0.03) as served:
        args = served.args(ECHO, partial_rollout=True)
        group = await roll_until(args, fresh_group(1), served, 5)
        state = group[0].metadata["envkit_state"]
        state["record"]["segments"][0]["train_ids"][0] += 1
        served.fake.settings.token_s = 0.0
        sample = (await roll_until(args, through_pickle(group), served))[0]
    assert sample.status is sample.Status.TRUNCATED
    assert sum(sample.loss_mask) == sum(1 for p in sample.rollout_log_probs if p)


class Fleeting(EchoEnv):
    """Has no state that could be saved, and never starts from the same observation twice."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)
    starts = 0

    def on_reset(self, task: Task) -> Turn:
        Fleeting.starts += 1
        return Turn(f"Start {Fleeting.starts}.")


@pytest.mark.parametrize("tokens", [5, 20])
async def test_slime_an_aborted_sample_that_cannot_be_resumed_is_restarted(tokens: int) -> None:
    import gymnasium

    from envkit.registration import register

    if "envkit/toy-fleeting-v0" not in gymnasium.registry:
        register("toy-fleeting-v0", entry_point=Fleeting)
    with text_server(say, token_s=0.02) as served:
        args = served.args({"env_id": "toy-fleeting-v0"}, partial_rollout=True)
        group = await roll_until(args, fresh_group(1), served, tokens)
        assert group[0].status is group[0].Status.ABORTED
        first = f"Start {Fleeting.starts}."
        served.fake.settings.token_s = 0.0
        sample = (await roll_until(args, through_pickle(group), served))[0]
        said = text_codec().decode(sample.tokens)
    assert sample.status is sample.Status.TRUNCATED, sample.metadata
    assert sample.metadata["envkit_episode"]["turns"] == 3
    assert sample.metadata["envkit_episode"]["retries"] == {"restart": 1}
    assert first not in said


async def test_slime_a_restarted_episode_trains_on_all_of_its_tokens() -> None:
    with text_server(say, token_s=0.03) as served:
        args = served.args(ECHO, partial_rollout=True, mask_offpolicy_in_partial_rollout=True)
        group = await roll_until(args, fresh_group(1), served, 5)
        del group[0].metadata["envkit_state"]
        served.fake.settings.token_s = 0.0
        served.fake.worker._script = lambda _request: "another reply"
        sample = (await roll_until(args, through_pickle(group), served))[0]
    assert sample.loss_mask[0] == 1
    assert REPLY not in sample.response


async def test_slime_routed_experts_survive_an_abort() -> None:
    with vision_server(say, token_s=0.02, routed_experts=(2, 2)) as served:
        args = served.args(DOTS, partial_rollout=True, use_rollout_routing_replay=True)
        group = await roll_until(args, fresh_group(1), served, 15)
        assert group[0].status is group[0].Status.ABORTED
        served.fake.settings.token_s = 0.0
        sample = (await roll_until(args, through_pickle(group), served))[0]
    assert sample.status is sample.Status.TRUNCATED, sample.metadata
    assert sample.rollout_routed_experts.shape == (len(sample.tokens) - 1, 2, 2)


def test_slime_generate_rollout_aborts_buffers_and_resumes_with_images(tmp_path: Any) -> None:
    """The whole real path: over-sampling, abort(), the data source's buffer, the next rollout."""
    from slime.rollout.sglang_rollout import generate_rollout
    from slime.utils.http_utils import init_http_client

    from envkit_slime import DataSource

    with vision_server(say, token_s=0.01, max_running=3) as served:
        args = served.args(
            {**DOTS, "record_dir": str(tmp_path)},
            partial_rollout=True,
            over_sampling_batch_size=4,
            rollout_batch_size=1,
            save=str(tmp_path / "save"),
            load=str(tmp_path / "save"),
        )
        init_http_client(args)
        source = DataSource(args)
        output = generate_rollout(args, 0, source)
        assert len(output.samples) == 1
        assert source.get_buffer_length() == 3
        waiting = [sample for group in source.buffer for sample in group]
        partial = [s for s in waiting if s.status is s.Status.ABORTED and s.response_length]
        assert partial
        assert all("envkit_state" in s.metadata for s in partial)
        assert all(s.metadata["start_rollout_id"] == 0 for s in partial)
        source.save(0)
        restored = DataSource(args)
        restored.load(0)
        assert restored.get_buffer_length() == 3
        served.fake.settings.weight_version = "next"
        served.fake.settings.token_s = 0.0
        served.fake.settings.max_running = 64
        seen: list[Any] = []
        for rollout_id in (1, 2, 3):
            seen += generate_rollout(args, rollout_id, restored).samples[0]
    resumed = [s for s in seen if s.metadata.get("start_rollout_id") == 0]
    assert resumed
    mixed = [s for s in resumed if len(set(s.weight_versions)) == 2]
    assert mixed
    assert all(s.status is s.Status.TRUNCATED for s in seen)
    check_finished(mixed, tmp_path, mask_old=False)


async def play_in_versions(envkit: dict[str, Any], versions: list[str], **flags: Any) -> Any:
    """Return a sample of four replies, aborted after each update of the weights but the last."""
    with text_server(say, token_s=0.01) as served:
        args = served.args(
            {**ECHO, "env_kwargs": {"max_turns": 12}, "limits": {"max_turns": 12}, **envkit},
            partial_rollout=True,
            **flags,
        )
        group = fresh_group(1)
        for version in versions:
            served.fake.settings.weight_version = version
            is_last = version == versions[-1]
            served.fake.settings.token_s = 0.0 if is_last else 0.01
            group = await roll_until(args, through_pickle(group), served, None if is_last else 12)
    (sample,) = group
    return sample


NORMALISED = {"custom_reward_post_process_path": "envkit_slime.post_process_rewards"}


@pytest.mark.parametrize(("limit", "kept"), [(0, {"5"}), (1, {"4", "5"}), (2, {"3", "4", "5"})])
async def test_slime_replies_of_weights_that_are_too_old_are_masked(
    limit: int, kept: set[str]
) -> None:
    sample = await play_in_versions({"max_staleness": limit}, ["3", "4", "5"], **NORMALISED)
    assert set(sample.weight_versions) == {"3", "4", "5"}
    trained: set[str] = set()
    for start, end, version in sample.metadata["envkit_runs"]:
        assert len(set(sample.loss_mask[start:end])) == 1
        if sample.loss_mask[start]:
            trained.add(version)
    assert trained == kept
    assert len(sample.loss_mask) == sample.response_length


async def test_slime_a_finished_sample_that_waited_is_masked_in_its_batch() -> None:
    from fakes.slime_groups import rollout_manager

    settings = {"max_staleness": 1}
    waited = await play_in_versions(settings, ["3"], **NORMALISED)
    fresh = await play_in_versions(settings, ["5"], **NORMALISED)
    assert any(waited.loss_mask)
    with text_server(say) as served:
        args = served.args({**ECHO, **settings}, n_samples_per_prompt=2, **NORMALISED)
        data = rollout_manager(args)._convert_samples_to_train_data([waited, fresh])
    assert not any(data["loss_masks"][0])
    assert any(data["loss_masks"][1])


@pytest.mark.parametrize(
    ("settings", "flags", "said"),
    [
        ({"max_staleness": 1}, {}, "--custom-reward-post-process-path"),
        ({"max_staleness": -1}, NORMALISED, "max_staleness"),
    ],
)
async def test_slime_a_staleness_limit_that_cannot_hold_is_refused(
    settings: dict[str, Any], flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await play_in_versions(settings, ["3"], **flags)


async def test_slime_a_staleness_limit_needs_numbered_weights() -> None:
    with pytest.raises(ConfigurationError, match="numbers"):
        await play_in_versions({"max_staleness": 1}, ["main", "other"], **NORMALISED)
