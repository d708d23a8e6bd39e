"""`envkit_miles.generate` under miles' real loader, generate_and_rm_group and Sample."""

import asyncio
import pickle
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.lost_backend import LOST, PATIENT, QUICK, check_ends, check_waits, register_lost
from fakes.sglang_failures import Failure, FailurePlan
from fakes.slime_groups import PARAMS, miles_args, miles_group, miles_state, roll_miles
from fakes.slime_run import DOTS, ECHO, text_server, vision_server

from envkit.errors import ConfigurationError
from envkit.trajectory import read_trajectories, verify_file

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_miles")]


async def test_miles_samples_with_images_pass_its_own_validator(tmp_path: Any) -> None:
    with vision_server(lambda _: "5", routed_experts=(2, 2)) as served:
        args = miles_args(
            served, {**DOTS, "record_dir": str(tmp_path)}, use_rollout_routing_replay=True
        )
        group = await roll_miles(miles_state(args), miles_group())
    ledgers = {t.metadata["sample_index"]: t for t in read_trajectories(tmp_path)}
    for sample in group:
        sample.validate()
        assert sample.status in (sample.Status.COMPLETED, sample.Status.TRUNCATED), sample.metadata
        trajectory = ledgers[sample.index]
        assert tuple(sample.tokens) == trajectory.train_ids()
        start = len(sample.tokens) - sample.response_length
        assert tuple(sample.loss_mask) == trajectory.loss_mask()[start:]
        assert tuple(sample.rollout_log_probs) == trajectory.logprobs()[start:]
        assert sample.rollout_routed_experts.shape == (len(sample.tokens) - 1, 2, 2)
        assert sample.weight_versions == ["default"] * 4
        assert sample.prefix_cache_info.cached_tokens > 0
        assert len(sample.multimodal_train_inputs["image_grid_thw"]) == 4
        assert isinstance(sample.reward, float)
    assert verify_file(tmp_path).is_sound


async def test_miles_a_fault_is_a_failed_sample_and_its_group_stays() -> None:
    plan = FailurePlan(script=[Failure.INTERNAL])
    envkit = {**ECHO, "retries": {"max_engine_retries_per_turn": 0}}
    with text_server(lambda _: "wrong", failures=plan) as served:
        group = await roll_miles(miles_state(miles_args(served, envkit)), miles_group(3))
    assert sorted(s.status.value for s in group) == ["failed", "truncated", "truncated"]
    for sample in group:
        sample.validate()
        assert sample.remove_sample == (sample.status is sample.Status.FAILED)
        assert len(sample.rollout_log_probs) == sample.response_length > 0


async def test_miles_an_aborted_sample_is_resumed() -> None:
    from miles.utils.types import Sample

    with vision_server(lambda _: "five, or six, or seven", token_s=0.01) as served:
        args = miles_args(served, DOTS, partial_rollout=True)
        state = miles_state(args)
        task = asyncio.create_task(roll_miles(state, miles_group(1)))
        while served.fake.worker.total_tokens < 12:
            await asyncio.sleep(0.005)
        state.aborted = True  # miles sets the flag, then stops the servers
        group = await task
        assert group[0].status is Sample.Status.ABORTED
        assert group[0].reward is None
        before = list(group[0].tokens)
        served.fake.settings.token_s = 0.0
        served.fake.settings.weight_version = "next"
        state.aborted = False
        again = [Sample.from_dict(pickle.loads(pickle.dumps(group[0].to_dict())))]
        sample = (await roll_miles(state, again))[0]
    assert sample.status is Sample.Status.TRUNCATED
    assert sample.tokens[: len(before)] == before
    assert sample.weight_versions[0] == "default"
    assert sample.weight_versions[-1] == "next"
    sample.validate()


async def test_miles_group_rm_sets_the_reward_that_the_environment_gave() -> None:
    with text_server(lambda _: "kiwi") as served:
        args = miles_args(served, ECHO, group_rm=True, custom_rm_path="envkit_miles.reward")
        group = miles_group()
        for sample in group:
            sample.metadata = {"envkit": {"task": {"word": "kiwi"}}}
        done = await roll_miles(miles_state(args), group)
    assert [sample.reward for sample in done] == [1.0, 1.0]


async def test_miles_requests_carry_the_samples_routing_key() -> None:
    with text_server(lambda _: "wrong") as served:
        group = await roll_miles(miles_state(miles_args(served, ECHO)), miles_group())
        keys = {
            entry.headers.get("X-SMG-Routing-Key")
            for entry in served.fake.log
            if entry.path == "/generate"
        }
    name = "routing_key" if hasattr(group[0], "routing_key") else "session_id"
    assert keys == {getattr(sample, name) for sample in group}
    assert len(keys) == 2


def test_miles_data_source_gives_its_own_samples() -> None:
    from miles.utils.misc import load_function
    from miles.utils.types import Sample

    with text_server(lambda _: "x") as served:
        source = load_function("envkit_miles.DataSource")(miles_args(served, ECHO))
        groups = source.get_samples(2)
    assert all(type(sample) is Sample for group in groups for sample in group)


@pytest.mark.parametrize(
    ("envkit", "said"),
    [
        ({"env_id": "toy-ehco-v0"}, "toy-echo-v0"),
        ({**ECHO, "env_kwargs": {"max_turn": 3}}, "max_turn"),
        ({**ECHO, "limits": {"turns": 3}}, "max_turns"),
    ],
)
async def test_miles_wrong_setting_ends_its_rollout(
    envkit: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = pytest.importorskip("miles.rollout.inference_rollout.inference_rollout_train")
    from miles.utils.types import Sample

    async def no_dumper(_args: Namespace) -> None:
        """SGLang's dumper, which needs SGLang, is off by default."""

    monkeypatch.setattr(train.dumper_utils, "configure_sglang", no_dumper)
    with text_server(lambda _: "wrong") as served:
        args = miles_args(served, envkit, rollout_submission_granularity=None)
        state = miles_state(args)
        state.sampling_params = dict(PARAMS)

        def next_groups(count: int) -> list[list[Any]]:
            return [[Sample(group_index=n, index=n)] for n in range(count)]

        with pytest.raises(ConfigurationError, match=said):
            await asyncio.wait_for(train.generate_rollout_async(state, 0, next_groups), 5)


@pytest.mark.parametrize(
    ("flags", "sent"),
    [
        ({"lora_rank": 8, "lora_adapter_path": None}, {"miles_lora"}),
        ({"lora_rank": 0, "lora_adapter_path": "adapters/mine"}, {"miles_lora"}),
        ({"lora_rank": 8, "lora_adapter_path": None, "lora_train_only": True}, {None}),
        ({"lora_rank": 0, "lora_adapter_path": None}, {None}),
    ],
)
async def test_miles_requests_name_the_lora_adapter(
    flags: dict[str, Any], sent: set[str | None]
) -> None:
    with text_server(lambda _: "wrong") as served:
        await roll_miles(miles_state(miles_args(served, ECHO, **flags)), miles_group())
        payloads = served.fake.payloads()
    assert {payload.get("lora_path") for payload in payloads} == sent


async def test_miles_multi_lora_is_refused() -> None:
    group = miles_group(1)
    group[0].adapter = SimpleNamespace(name="mine", slot=0)
    with text_server(lambda _: "wrong") as served:
        state = miles_state(miles_args(served, ECHO))
        with pytest.raises(ConfigurationError, match="--multi-lora-n-adapters"):
            await roll_miles(state, group)


async def test_miles_indexer_replay_is_refused() -> None:
    with text_server(lambda _: "wrong") as served:
        state = miles_state(miles_args(served, ECHO, use_rollout_indexer_replay=True))
        with pytest.raises(ConfigurationError, match="--use-rollout-indexer-replay"):
            await roll_miles(state, miles_group(1))


async def test_miles_debug_trajectories_have_the_conversation() -> None:
    with vision_server(lambda _: "5") as served:
        args = miles_args(served, DOTS, save_debug_trajectory_data="{rollout_id}.jsonl")
        group = await roll_miles(miles_state(args), miles_group(1))
        plain = await roll_miles(miles_state(miles_args(served, DOTS)), miles_group(1))
    assert "messages" not in plain[0].metadata
    said = group[0].metadata["messages"]
    assert [entry["role"] for entry in said][:4] == ["user", "assistant"] * 2
    assert (said[0]["content"], said[1]["content"]) == ("How many dots are there?", "5")
    assert {type(entry["content"]) for entry in said} == {str}


class Sink:
    """The dashboard's sink: what is told to it, in order."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, int, int]] = []
        self.times: list[float] = []

    def gen_span(self, sample: Any, t0: float, t1: float, turn: int, detail: str = "") -> None:
        self.spans.append(("gen", sample.index, turn))
        self.times += [t0, t1]
        assert int(detail) > 0

    def tool_span(self, sample: Any, t0: float, t1: float, turn: int, detail: str = "") -> None:
        self.spans.append(("tool", sample.index, turn))
        self.times += [t0, t1]

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


async def test_miles_dashboard_gets_a_span_of_every_reply_and_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lifecycle = pytest.importorskip("miles.utils.lifecycle")
    sink = Sink()
    monkeypatch.setattr(lifecycle.TrajectoryLifecycle(), "sink", sink)
    with text_server(lambda _: "wrong") as served:
        await roll_miles(miles_state(miles_args(served, ECHO)), miles_group(1))
    turns = [("gen", 0, 1), ("tool", 0, 1), ("gen", 0, 2), ("tool", 0, 2), ("gen", 0, 3)]
    assert sink.spans == turns
    assert sink.times == sorted(sink.times)


async def test_miles_several_rows_with_images_are_refused() -> None:
    flags = {
        "custom_reward_post_process_path": "envkit_miles.post_process_rewards",
        "calculate_per_token_loss": True,  # the released miles takes no several rows otherwise
    }
    with vision_server(lambda _: "5") as served:
        args = miles_args(served, {**DOTS, "fan_out": "turns"}, **flags)
        with pytest.raises(ConfigurationError, match="fan_out"):
            await roll_miles(miles_state(args), miles_group(1))
        merged = miles_args(served, {**DOTS, "fan_out": "sequences"}, **flags)
        (siblings,) = await roll_miles(miles_state(merged), miles_group(1))
    assert len(siblings) == 1


@pytest.mark.usefixtures("needs_slime")
def test_miles_logs_carry_envkits_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    from fakes.slime_groups import load
    from miles.utils.types import Sample

    from envkit.metrics import EpisodeFacts

    logged: list[dict[str, Any]] = []
    tracking: Any = ModuleType("miles.utils.tracking_utils.tracking")
    tracking.log = lambda _args, values, step_key: logged.append(values)
    monkeypatch.setitem(sys.modules, "miles.utils.tracking_utils.tracking", tracking)
    facts = EpisodeFacts(stop_reason="terminated", reward=1.0, reward_terms={"exact": 1.0})
    samples = [Sample(index=0, metadata={"envkit_episode": facts.to_json()})]
    log = load("envkit_miles.log_rollout_data")
    args = Namespace(wandb_always_use_train_step=False, n_samples_per_prompt=1)
    extra: dict[str, Any] = {}
    assert log(3, args, samples, extra, 2.0) is False
    assert extra["envkit/reward_term/exact/mean"] == 1.0
    assert (
        load("envkit_miles.log_eval_rollout_data")(3, args, {"toys": {"samples": samples}}, None)
        is False
    )
    assert logged[0]["eval/toys/envkit/reward/mean"] == 1.0


async def test_miles_ends_after_its_backend_was_killed() -> None:
    register_lost()
    with text_server(lambda _: "x") as served:
        state = miles_state(miles_args(served, {"env_id": LOST, **QUICK}))
        assert [one.reward for one in await roll_miles(state, miles_group(4))] == [1.0] * 4
        await check_ends(lambda: roll_miles(state, miles_group(4)))


async def test_miles_goes_on_when_its_backend_is_back() -> None:
    register_lost()
    with text_server(lambda _: "x") as served:
        state = miles_state(miles_args(served, {"env_id": LOST, **PATIENT}))
        groups = await check_waits(lambda: roll_miles(state, miles_group(4)))
        assert all(one.remove_sample for group in groups for one in group)
        assert [one.reward for one in await roll_miles(state, miles_group(4))] == [1.0] * 4
