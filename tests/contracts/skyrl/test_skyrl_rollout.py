"""What passes between the generator and SkyRL's inference client, and what its failures become."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import torch
from fakes.models import tiny_model_dir
from fakes.skyrl_envs import WORLD, colour_of
from fakes.skyrl_run import Run
from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_vllm_sampling_params
from skyrl.train.config import SamplingParams

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest

MakeRun = Callable[..., Run]


def sees(ask: Any) -> str:
    return colour_of(ask.images[-1])


async def test_an_abort_by_the_server_is_resumed_with_every_token_kept(run: MakeRun) -> None:
    # A weight update with PauseMode.ABORT: partial tokens come back, the caller continues.
    made = run(policy=lambda ask: "good", samples=2, client={"aborts": {(1, 1)}})
    output = await made.generate()
    assert output["stop_reasons"] == ["stop", "stop"]
    assert [sum(row) for row in output["rewards"]] == [0.75, 0.75]
    assert output["rollout_metrics"]["envkit/resumes"] == 1
    # The cut reply is complete, each token with the log-probability from its own request.
    assert output["response_ids"][0] == output["response_ids"][1]
    assert output["loss_masks"][0] == output["loss_masks"][1]
    for ids, mask, logprobs in zip(
        output["response_ids"], output["loss_masks"], output["rollout_logprobs"], strict=True
    ):
        expected = [made.client.logprob(i) if m else 0.0 for i, m in zip(ids, mask, strict=True)]
        assert logprobs == expected


async def test_an_episode_that_is_aborted_again_and_again_is_masked(run: MakeRun) -> None:
    class Always(set[tuple[int, int]]):
        def discard(self, element: object) -> None:
            """Stay."""

    made = run(
        policy=lambda ask: "good",
        client={"aborts": Always({(1, 0)})},
        envkit={"max_resumes": 1},
    )
    output = await made.generate()
    assert [sum(mask) > 0 for mask in output["loss_masks"]] == [True, False]
    assert output["rollout_metrics"]["envkit/fault/transient"] == 1
    assert sum(output["rewards"][1]) == 0.75  # its sibling's


async def test_transient_failures_of_the_client_are_retried_and_others_masked(
    run: MakeRun,
) -> None:
    lost: list[Exception] = [aiohttp.ServerDisconnectedError()]
    made = run(
        policy=lambda ask: "good",
        samples=3,
        client={"errors": {(0, 1): lost, (1, 1): [ValueError("n > 1 is not supported")]}},
    )
    output = await made.generate()
    assert [sum(mask) > 0 for mask in output["loss_masks"]] == [True, False, True]
    assert output["rollout_metrics"]["envkit/retry/engine"] == 1
    assert output["rollout_metrics"]["envkit/fault/permanent"] == 1


async def test_a_request_that_hangs_becomes_a_fault(run: MakeRun) -> None:
    made = run("good", envkit={"engine": {"timeout_s": 0.05}, "retries": {
        "max_engine_retries_per_turn": 0}}, samples=1)  # fmt: skip

    async def hang(batch: Any, model: Any = None) -> Any:
        await asyncio.sleep(60)

    made.client.generate = hang  # pyright: ignore[reportAttributeAccessIssue]
    output = await made.generate()
    assert output["rollout_metrics"]["envkit/fault/timeout"] == 1


async def test_a_processor_that_resizes_differently_from_the_server_is_a_ledger_fault(
    run: MakeRun,
) -> None:
    made = run(
        policy=sees, vision=True, env_kwargs={"pictures": True}, client={"resize": 2}
    )  # fmt: skip
    output = await made.generate()
    assert sum(map(sum, output["loss_masks"])) == 0
    assert output["rollout_metrics"]["envkit_mean/stop/ledger_fault/share"] == 1.0
    await made.train(output)


async def test_each_image_is_rendered_once_and_read_by_the_model(run: MakeRun) -> None:
    made = run(policy=sees, samples=3, vision=True, env_kwargs={"pictures": True})
    output = await made.generate()
    assert [round(sum(row), 2) for row in output["rewards"]] == [0.75] * 3
    assert len(made.client.rendered) == len(set(made.client.rendered)) <= 3
    assert len(made.client.requests) == 9


async def test_requests_carry_what_skyrl_asks_for(run: MakeRun) -> None:
    made = run("good", "good", "good", samples=1, policy_model_name="skyrl-lora")
    config = SamplingParams(max_generate_length=48, top_k=20, min_p=0.1, stop=["</a>"])
    await made.generate(params=get_vllm_sampling_params(config))
    params = made.client.requests[0]["params"]
    assert params["max_tokens"] == 48
    assert (params["top_k"], params["min_p"], params["min_tokens"]) == (20, 0.1, 1)
    assert params["stop"] == ["</a>"]
    assert params["stop_token_ids"] == list(made.codec.stop_ids)
    assert params["logprobs"] == 1
    assert params["include_stop_str_in_output"] is True
    assert set(made.client.models) == {"skyrl-lora"}
    assert {request["salt"] for request in made.client.requests} == {"skyrl-lora:3"}


async def test_placeholders_of_images_cannot_be_sampled(run: MakeRun) -> None:
    made = run(policy=sees, vision=True, env_kwargs={"pictures": True}, samples=1)
    await made.generate()
    bias = made.client.requests[0]["params"]["logit_bias"]
    assert bias == {str(token): -100.0 for token in made.codec.media_ids}


async def test_the_placeholder_row_of_a_vision_run_passes_the_real_models_forward(
    run: MakeRun,
) -> None:
    """A micro batch without any image does not: Qwen-VL fails on SkyRL's empty tensors."""
    from transformers import AutoModelForImageTextToText

    loader: Any = AutoModelForImageTextToText
    model = loader.from_pretrained(tiny_model_dir("qwen2_5_vl"))
    made = run(policy=lambda ask: "boom", vision=True, env_kwargs={"pictures": True})
    output = await made.generate()
    token = made.codec.media_ids[0]
    ids = torch.tensor([output["prompt_token_ids"][0] + output["response_ids"][0]])

    def forward(pixels: Any, grids: Any, ids: Any = ids) -> Any:
        return model(
            ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == token).long(),
            pixel_values=pixels,
            image_grid_thw=grids,
        )

    logits = forward(output["pixel_values"][0], output["image_grid_thw"][0]).logits
    assert bool(torch.isfinite(logits).all())
    with pytest.raises((ValueError, RuntimeError)):
        forward(output["pixel_values"][0][:0], output["image_grid_thw"][0][:0], ids[:, :1])


async def test_groups_play_one_task_and_evaluation_has_its_own_seeds(run: MakeRun) -> None:
    made = run(policy=lambda ask: "good", samples=3, prompts=4)
    train, again, other = [await made.generate(phase=phase) for phase in ("train", "train", "eval")]
    starts = [tuple(prompt) for prompt in train["prompt_token_ids"]]
    assert [len(set(starts[n : n + 3])) for n in range(0, 12, 3)] == [1] * 4
    assert train["prompt_token_ids"] == again["prompt_token_ids"]
    assert train["prompt_token_ids"] != other["prompt_token_ids"]


async def test_a_task_of_the_dataset_is_played(run: MakeRun) -> None:
    made = run(policy=lambda ask: "good")
    row = EpisodeRequest(env_id="obey-v0", task={"name": "the dishes"}, seed=5)
    output = await made.generate([row])
    assert "Do the dishes." in made.codec.decode(output["prompt_token_ids"][0])
    assert "from the dataset" not in made.codec.decode(output["prompt_token_ids"][0])


async def test_a_sample_without_an_environment_says_so(run: MakeRun) -> None:
    made = run("good", envkit={"env_id": None})
    with pytest.raises(ConfigurationError, match="no environment is named"):
        await made.generate()


def test_environments_are_closed_when_the_event_loop_ends(run: MakeRun) -> None:
    WORLD.clear()

    async def play() -> None:
        made = run(policy=lambda ask: "good", samples=4, env="plain-v0")
        await made.generate()
        await made.generate()

    asyncio.run(play())
    assert WORLD["built"] == WORLD["closed"] > 0


def test_a_generator_works_on_one_event_loop_after_another(run: MakeRun) -> None:
    made = run(policy=lambda ask: "good")
    first = asyncio.run(made.generate())
    second = asyncio.run(made.generate())
    assert first["response_ids"] == second["response_ids"]


async def test_generate_may_be_cancelled(run: MakeRun) -> None:
    made = run("good")
    started = asyncio.Event()

    async def hang(batch: Any, model: Any = None) -> Any:
        started.set()
        await asyncio.sleep(60)

    made.client.generate = hang  # pyright: ignore[reportAttributeAccessIssue]
    task = asyncio.create_task(made.generate())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await made.generator.aclose()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generator": {"merge_stepwise_output": True}, "vision": True}, "envkit.merge"),
        ({"envkit": {"merge": True}}, "step_wise_trajectories=true"),
        ({"envkit": {"reward_placement": "turns"}, "step_wise": True}, "whole trajectories"),
        ({"scalar_rewards": True, "step_wise": True}, "zero_variance_filter"),
        ({"envkit": {"env_id": "obay-v0"}}, "Did you mean 'obey-v0'"),
        ({"envkit": {"limits": {"max_trns": 3}}}, "Did you mean 'max_turns'"),
        ({"envkit": {"engine": {"timeout": 3}}}, "must be a mapping of"),
        ({"envkit": {"images": True}}, "envkit.images is true"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_a_batch(
    run: MakeRun, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run("good", **options)


@pytest.mark.parametrize(
    "key", ["enable_return_routed_experts", "enable_return_sample_support_set"]
)
def test_what_cannot_be_returned_is_refused(run: MakeRun, key: str) -> None:
    from skyrl.train.config import InferenceEngineConfig

    engine = InferenceEngineConfig(**{key: True})
    with pytest.raises(ConfigurationError, match=f"{key}=false"):
        run("good", generator={"inference_engine": engine})


async def test_raw_logprobs_at_another_temperature_are_refused(run: MakeRun) -> None:
    made = run("good")
    with pytest.raises(ConfigurationError, match="logprobs_mode=processed_logprobs"):
        await made.generate(params={"temperature": 0.7, "max_tokens": 8})
    told = run("good", "good", "good", envkit={"engine": {"logprob_kind": "sampled"}})
    output = await told.generate(params={"temperature": 0.7, "max_tokens": 8})
    assert output["rollout_logprobs"] is not None
