"""`--custom-rm-path` and on-policy distillation through slime's and miles' real functions."""

import io
from base64 import b64decode
from typing import Any

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from fakes.sglang_failures import Failure, FailurePlan
from fakes.slime_groups import (
    group_of,
    miles_args,
    miles_group,
    miles_state,
    roll_group,
    roll_miles,
    rollout_manager,
)
from fakes.slime_run import DOTS, ECHO, text_server, vision_server
from PIL import Image as PilImage

from envkit.errors import ConfigurationError
from envkit_slime import dynamic_filter

pytestmark = [pytest.mark.slime]

MINE = f"{__name__}.grade"
DISTILLED: dict[str, Any] = {
    "use_opd": True,
    "opd_type": "sglang",
    "custom_rm_path": "{}.rollout.on_policy_distillation.reward_func",
    "custom_reward_post_process_path": "{}.rollout.on_policy_distillation.post_process_rewards",
}
"""The flags of both examples/on_policy_distillation/run-qwen3-8B-opd.sh."""


async def grade(args: Any, sample: Any, **kwargs: Any) -> Any:
    """A user's own reward function: ten times the environment's reward, plus one."""
    del args, kwargs
    if isinstance(sample, list):
        return [await grade(None, one) for one in sample]
    return 10 * sample.metadata["envkit_episode"]["reward"] + 1


class Teacher:
    """A server that scores every token as SGLang does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def __aenter__(self) -> "Teacher":
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/generate", self._score)
        app.router.add_post("/flush_cache", self._flush)
        self._server = TestServer(app)
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def url(self) -> str:
        return str(self._server.make_url("/generate"))

    async def _flush(self, _request: web.Request) -> web.Response:
        return web.json_response({})

    async def _score(self, request: web.Request) -> web.Response:
        payload = await request.json()
        self.asked.append(payload)
        start = payload["logprob_start_len"]
        scores = [[-0.5 - n, token] for n, token in enumerate(payload["input_ids"])][start:]
        scores[0][0] = None
        return web.json_response({"text": "", "meta_info": {"input_token_logprobs": scores}})

    def pixels(self) -> list[list[bytes]]:
        """Return the pixels of each request's images."""
        return [
            [
                PilImage.open(io.BytesIO(b64decode(uri.partition(",")[2]))).tobytes()
                for uri in payload.get("image_data", ())
            ]
            for payload in self.asked
        ]


def distilled(trainer: str, url: str, **changes: Any) -> dict[str, Any]:
    named = {k: v.format(trainer) if isinstance(v, str) else v for k, v in DISTILLED.items()}
    return {**named, "rm_url": url, **changes}


def plan_of_one_fault() -> FailurePlan:
    return FailurePlan(script=[Failure.INTERNAL])


QUICK: dict[str, Any] = {"retries": {"max_engine_retries_per_turn": 0}}


@pytest.mark.usefixtures("needs_slime")
async def test_slime_a_users_reward_function_is_called_and_sees_the_environments() -> None:
    with text_server(lambda _: "kiwi") as served:
        args = served.args(ECHO, custom_rm_path=MINE)
        group = await roll_group(args, group_of(metadata={"envkit": {"task": {"word": "kiwi"}}}))
    assert [sample.reward for sample in group] == [11.0, 11.0]
    assert [s.metadata["envkit_episode"]["reward"] for s in group] == [1.0, 1.0]


@pytest.mark.usefixtures("needs_slime")
async def test_slime_a_fault_is_not_shown_to_a_users_reward_function() -> None:
    with text_server(lambda _: "wrong", failures=plan_of_one_fault()) as served:
        args = served.args({**ECHO, **QUICK}, custom_rm_path=MINE)
        group = await roll_group(args, group_of(3))
    assert sorted((s.status.value, s.reward) for s in group) == [
        ("failed", 0.0),
        ("truncated", 1.0),
        ("truncated", 1.0),
    ]


@pytest.mark.usefixtures("needs_slime")
async def test_slime_an_evaluation_datasets_reward_function_is_called() -> None:
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm

    with text_server(lambda _: "wrong") as served:
        args = served.args(ECHO)
        given = group_of(2)
        given[0].custom_rm_path = MINE
        params = GenerateState(args).sampling_params
        done = [await generate_and_rm(args, s, params.copy(), evaluation=True) for s in given]
    assert [sample.reward for sample in done] == [1.0, 0.0]


@pytest.mark.usefixtures("needs_slime")
async def test_slime_a_users_reward_function_gets_fanned_out_samples_as_a_list() -> None:
    flags = {"custom_reward_post_process_path": "envkit_slime.post_process_rewards"}
    with text_server(lambda _: "wrong") as served:
        args = served.args({**ECHO, "fan_out": "turns"}, custom_rm_path=MINE, **flags)
        group = await roll_group(args, group_of(1))
    assert [sample.reward for sample in group[0]] == [1.0] * 3


@pytest.mark.usefixtures("needs_slime")
@pytest.mark.parametrize("ours", [False, True])
async def test_slime_distills_with_images_and_a_fault(ours: bool) -> None:
    changes = (
        {"custom_reward_post_process_path": "envkit_slime.post_process_rewards"} if ours else {}
    )
    with vision_server(lambda _: "5", failures=plan_of_one_fault()) as served:
        async with Teacher() as teacher:
            flags = distilled("slime", teacher.url, **changes)
            args = served.args({**DOTS, **QUICK}, n_samples_per_prompt=3, **flags)
            args.rollout_batch_size = 1
            group = await roll_group(args, group_of(3))
        data = rollout_manager(args)._convert_samples_to_train_data(group)
    check_teacher(teacher, group, data)
    rewards = [s.metadata["envkit_episode"]["reward"] for s in group]
    if ours:
        known = [reward for reward in rewards if reward is not None]
        filled = [sum(known) / 2 if reward is None else reward for reward in rewards]
        assert data["raw_reward"] == filled
        assert all(isinstance(s.reward, float) for s in group)
    else:
        assert data["raw_reward"] == [0.0] * 3


def check_teacher(teacher: Teacher, group: list[Any], data: dict[str, Any]) -> None:
    """Every sample was scored by its own ids and images, and got its response's scores."""
    assert sorted(p["input_ids"] for p in teacher.asked) == sorted(s.tokens for s in group)
    by_ids = {tuple(p["input_ids"]): n for n, p in enumerate(teacher.asked)}
    sizes = {"failed": 0, "completed": 4, "truncated": 4}
    for sample, scores in zip(group, data["teacher_log_probs"], strict=True):
        number = by_ids[tuple(sample.tokens)]
        pictures = (sample.multimodal_inputs or {}).get("images") or []
        assert len(pictures) == sizes[sample.status.value]
        assert teacher.pixels()[number] == [picture.tobytes() for picture in pictures]
        start = len(sample.tokens) - sample.response_length
        wanted = [-0.5 - n for n in range(start, len(sample.tokens))]
        assert torch.equal(scores, torch.tensor(wanted))
    assert sorted(s.status.value for s in group).count("failed") == 1


@pytest.mark.usefixtures("needs_slime")
async def test_slime_distillation_leaves_evaluation_to_the_environment() -> None:
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm

    with text_server(lambda _: "wrong") as served:
        async with Teacher() as teacher:
            args = served.args(ECHO, **distilled("slime", teacher.url))
            sample = group_of(1)[0]
            sample.custom_rm_path = args.custom_rm_path  # as slime's eval_config fills it
            params = GenerateState(args).sampling_params
            done = await generate_and_rm(args, sample, params, evaluation=True)
    assert (done.reward, teacher.asked) == (0.0, [])


@pytest.mark.usefixtures("needs_slime")
async def test_slime_a_task_made_of_images_is_the_same_after_a_restart() -> None:
    """The dataset's images must not be replaced by those of an attempt that did not finish."""
    picture = PilImage.new("RGB", (56, 56), "red")
    with vision_server(lambda _: "5", failures=plan_of_one_fault()) as served:
        args = served.args({**DOTS, **QUICK}, custom_rm_path=MINE)
        given = group_of(2, multimodal_inputs={"images": [picture], "videos": None})
        group = await roll_group(args, given)
    by_status = {sample.status.value: sample.multimodal_inputs["images"] for sample in group}
    assert by_status["failed"] == [picture]
    assert len(by_status["truncated"]) == 4


@pytest.mark.usefixtures("needs_miles")
async def test_miles_a_users_reward_function_is_called() -> None:
    with text_server(lambda _: "wrong") as served:
        args = miles_args(served, ECHO, custom_rm_path=MINE)
        group = await roll_miles(miles_state(args), miles_group())
    assert [sample.reward for sample in group] == [1.0, 1.0]


@pytest.mark.usefixtures("needs_miles_main")
async def test_miles_distills_with_a_fault() -> None:
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data
    from miles.rollout.on_policy_distillation import post_process_rewards

    with vision_server(lambda _: "5", failures=plan_of_one_fault()) as served:
        async with Teacher() as teacher:
            flags = distilled("miles", teacher.url, use_dynamic_global_batch_size=False)
            args = miles_args(served, {**DOTS, **QUICK}, **flags)
            group = await roll_miles(miles_state(args), miles_group(3))
        data = convert_samples_to_train_data(args, group, {}, None, post_process_rewards)
    assert sorted(p["input_ids"] for p in teacher.asked) == sorted(s.tokens for s in group)
    for sample, scores in zip(group, data["teacher_log_probs"], strict=True):
        assert len(scores) == sample.response_length


@pytest.mark.usefixtures("needs_miles")
async def test_miles_scores_by_prefill_with_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = pytest.importorskip("miles.rollout.generate_utils.prefill_logprobs")
    from miles.utils import http_utils

    with vision_server(lambda _: "5") as served:
        args = miles_args(served, DOTS, recompute_logprobs_via_prefill=True)
        state = miles_state(args)
        group = await roll_miles(state, miles_group(2))
    import httpx

    async with Teacher() as teacher, httpx.AsyncClient() as client:
        monkeypatch.setattr(http_utils, "_http_client", client)
        await prefill.recompute_samples_rollout_logprobs_via_prefill(
            args, group, url=teacher.url, sampling_params={"temperature": 1.0}
        )
    assert [payload["input_ids"] for payload in teacher.asked] == [s.tokens for s in group]
    assert [len(pixels) for pixels in teacher.pixels()] == [4, 4]
    for sample in group:
        assert len(sample.rollout_log_probs) == sample.response_length
        assert sample.metadata["rollout_log_probs_source"] == "sglang_prefill_recompute"


@pytest.mark.usefixtures("needs_slime")
async def test_slime_distillation_of_fanned_out_samples_is_refused() -> None:
    with text_server(lambda _: "wrong") as served:
        args = served.args({**ECHO, "fan_out": "turns"}, **distilled("slime", "http://teacher"))
        with pytest.raises(ConfigurationError, match="--opd-type sglang"):
            await roll_group(args, group_of(1))


@pytest.mark.usefixtures("needs_slime")
async def test_slime_the_dynamic_filter_reads_the_environments_reward_while_distilling() -> None:
    from slime.rollout.filter_hub.base_types import call_dynamic_filter

    with text_server(lambda _: "kiwi") as served:
        async with Teacher() as teacher:
            args = served.args(ECHO, **distilled("slime", teacher.url))
            given = group_of(2)
            for sample, word in zip(given, ("kiwi", "plum"), strict=True):
                sample.metadata = {"envkit": {"task": {"word": word}, "seed": 1}}
                sample.group_index = sample.index  # other tasks are other groups
            group = await roll_group(args, given)
    assert all(isinstance(sample.reward, dict) for sample in group)
    assert call_dynamic_filter(dynamic_filter, args, group).keep


@pytest.mark.usefixtures("needs_miles")
async def test_miles_distillation_by_the_students_top_tokens_is_refused() -> None:
    with text_server(lambda _: "wrong") as served:
        flags = distilled("miles", "http://teacher", opd_log_prob_top_k=4)
        for strategy in ("only-student", "union"):
            args = miles_args(served, ECHO, opd_top_k_strategy=strategy, **flags)
            with pytest.raises(ConfigurationError, match="--opd-log-prob-top-k"):
                await roll_miles(miles_state(args), miles_group(1))
