"""What a SkyRL generator must hold, line by line, and what passes between it and the client."""

import asyncio
import copy
import math
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import torch
from fakes.models import tiny_model_dir
from fakes.skyrl_envs import WORLD
from fakes.skyrl_run import Run, advantages
from fakes.templates import make_codec
from fakes.verl_envs import colour_of
from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_vllm_sampling_params
from skyrl.train.config import SamplingParams
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.utils import get_metrics_from_generator_output
from skyrl.train.utils.trainer_utils import validate_generator_output

from envkit.errors import ConfigurationError, ContractError
from envkit.rollout import EpisodeRequest
from envkit_skyrl import validate_output

MakeRun = Callable[..., Run]


def sees(ask: Any) -> str:
    return colour_of(ask.images[-1])


async def test_skyrl_must_hold_1_logprobs_and_metrics_exist_as_keys(run: MakeRun) -> None:
    # At temperature 0.7 a server with raw log-probabilities has none for an evaluation.
    made = run("good", "good", "good")
    output = await made.generate(phase="eval", params={"temperature": 0.7, "max_tokens": 32})
    assert output["rollout_logprobs"] is None
    assert output["rollout_metrics"] is not None
    validate_generator_output(2, output)


@pytest.mark.parametrize("step_wise", [False, True])
async def test_skyrl_must_hold_2_columns_of_a_row_have_one_length_and_no_row_is_empty(
    run: MakeRun, step_wise: bool
) -> None:
    made = run(policy=lambda ask: ("good", "boom", "?")[ask.member], samples=3, step_wise=step_wise)
    output = await made.generate()
    keys = ("response_ids", "loss_masks", "rewards", "rollout_logprobs")
    for columns in zip(*(output[key] for key in keys), strict=True):
        assert {len(column) for column in columns} == {len(columns[0])}
        assert len(columns[0]) > 0
    broken = copy.deepcopy(output)
    for key in keys:
        broken[key][0] = []
    with pytest.raises(ContractError, match="must not be empty"):
        validate_output(broken, made.batch()["trajectory_ids"])


async def test_skyrl_must_hold_3_rows_are_adjacent_and_the_last_one_is_marked(
    run: MakeRun,
) -> None:
    # Episodes end after different numbers of turns, and in a different order than requested.
    made = run(
        policy=lambda ask: "end" if ask.turn == 2 - ask.member else "good",
        samples=3,
        prompts=2,
        step_wise=True,
        env_kwargs={"rounds": 5},
    )
    output = await made.generate()
    found = [identity.to_string() for identity in output["trajectory_ids"]]
    assert list(dict.fromkeys(found)) == ["0_0", "0_1", "0_2", "1_0", "1_1", "1_2"]
    assert found == sorted(found)
    assert all(type(mark) is bool for mark in output["is_last_step"])
    ends = [found[n] for n, mark in enumerate(output["is_last_step"]) if mark]
    assert ends == list(dict.fromkeys(found))
    validate_generator_output(6, output, step_wise=True)


@pytest.mark.parametrize("step_wise", [False, True])
async def test_skyrl_must_hold_4_every_trajectory_comes_back(run: MakeRun, step_wise: bool) -> None:
    made = run(policy=lambda ask: "good", samples=2, prompts=3, step_wise=step_wise)
    rows = [
        EpisodeRequest(env_id="broken-v0"),
        EpisodeRequest(env_id="obey-v0"),
        EpisodeRequest(env_id="no-such-env-v0"),
    ]
    output = await made.generate(rows)
    ids = [identity.to_string() for identity in output["trajectory_ids"]]
    assert list(dict.fromkeys(ids)) == ["0_0", "0_1", "1_0", "1_1", "2_0", "2_1"]
    metrics = output["rollout_metrics"]
    assert (metrics["envkit/masked"], metrics["envkit/unplayable"]) == (4, 2)
    batch = await made.train(output)  # real mini-batch boundaries: the batch geometry holds
    assert len(set(batch.metadata["uids"])) == 3


@pytest.mark.parametrize("merge", [False, True])
async def test_skyrl_must_hold_5_the_return_is_on_the_last_token_of_the_last_row(
    run: MakeRun, merge: bool
) -> None:
    made = run("good", "bad", "good", samples=1, step_wise=True, envkit={"merge": merge})
    output = await made.generate()
    nonzero = [
        (row, place)
        for row, rewards in enumerate(output["rewards"])
        for place, reward in enumerate(rewards)
        if reward
    ]
    last = len(output["rewards"]) - 1
    assert nonzero == [(last, len(output["rewards"][last]) - 1)]
    assert output["rewards"][last][-1] == 0.5
    assert output["loss_masks"][last][-1] == 1
    ends = {key: [output[key][-1]] for key in ("rewards", "response_ids", "loss_masks")}
    metrics: Any = get_metrics_from_generator_output(ends, ["0"])
    assert metrics["pass_at_n"] == 1.0


async def test_skyrl_must_hold_6_nothing_is_observed_after_the_end(run: MakeRun) -> None:
    made = run("good", "end", samples=1, env_kwargs={"last_words": True})
    output = await made.generate()
    assert "It is over" not in made.codec.decode(output["response_ids"][0])
    assert output["response_ids"][0][-1] in made.codec.stop_ids
    assert output["loss_masks"][0][-1] == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"words": ["good"] * 3}, "stop"),
        ({"words": ["good", "end"]}, "stop"),
        ({"words": ["bad"] * 2, "env_kwargs": {"rounds": 9, "max_turns": 2}}, "stop"),
        ({"words": ["bad"] * 2, "envkit": {"limits": {"max_turns": 2}}}, "length"),
        ({"words": ["bad " * 90], "envkit": {"limits": {"max_tokens_per_turn": 9}}}, "length"),
        ({"words": ["bad"] * 3, "envkit": {"limits": {"max_response_tokens": 12}}}, "length"),
        (
            {
                "words": ["bad"] * 3,
                "env_kwargs": {"padding": 20},
                "envkit": {"limits": {"max_context_tokens": 70}},
            },
            "length",
        ),
        ({"words": ["bad " * 90], "env_kwargs": {"rounds": 1}}, "length"),
    ],
    ids=["done", "early", "env turns", "turns", "reply", "response", "context", "last reply cut"],
)
async def test_skyrl_must_hold_7_a_clean_end_is_stop_and_a_cut_off_is_length(
    run: MakeRun, options: dict[str, Any], expected: str
) -> None:
    words = options.pop("words")
    made = run(*words, samples=1, step_wise=True, **options)
    output = await made.generate()
    assert output["stop_reasons"][-1] == expected
    assert output["is_last_step"][-1] is True


async def test_skyrl_must_hold_8_history_is_kept_as_tokens(run: MakeRun) -> None:
    made = run("good  good", "b a d", "good", samples=1, step_wise=True)
    output = await made.generate()
    sent = [request["ids"] for request in made.client.requests]
    assert output["prompt_token_ids"] == sent
    for row in range(2):
        seen = output["prompt_token_ids"][row] + output["response_ids"][row]
        assert output["prompt_token_ids"][row + 1][: len(seen)] == seen
    assert output["rollout_metrics"]["envkit/rows/forked"] == 0


async def test_skyrl_must_hold_8_a_rewritten_history_forks_and_is_counted(run: MakeRun) -> None:
    made = run(
        "<think>\nlong\n</think>\n\ngood", "<think>\nx\n</think>\n\ngood", "good",
        samples=1, step_wise=True, codec=make_codec("qwen3", history="rerender"),
        envkit={"merge": True},
    )  # fmt: skip
    output = await made.generate()
    assert len(output["response_ids"]) == 3
    assert output["rollout_metrics"]["envkit/rows/forked"] == 2
    assert output["rollout_metrics"]["envkit/rows/drifted_tokens"] > 0
    assert len(advantages(await made.train(output))) == 3


async def test_skyrl_must_hold_9_only_lists_and_metrics_are_in_the_output(run: MakeRun) -> None:
    output = await run(policy=sees, vision=True, env_kwargs={"pictures": True}).generate()
    for key, value in output.items():
        assert isinstance(value, dict if key == "rollout_metrics" else list), key


@pytest.mark.parametrize("step_wise", [False, True])
async def test_skyrl_must_hold_10_no_row_exceeds_the_trainers_length(
    run: MakeRun, step_wise: bool
) -> None:
    made = run(
        policy=lambda ask: "good", max_sequence_tokens=150, step_wise=step_wise,
        env_kwargs={"rounds": 8, "padding": 10},
    )  # fmt: skip
    output = await made.generate()
    lengths = [
        len(prompt) + len(response)
        for prompt, response in zip(output["prompt_token_ids"], output["response_ids"], strict=True)
    ]
    assert max(lengths) <= 150
    assert output["stop_reasons"][-1] == "length"
    assert all(len(request["ids"]) < 150 for request in made.client.requests)


@pytest.mark.parametrize("step_wise", [False, True])
async def test_skyrl_must_hold_10_a_prompt_that_is_too_long_is_masked_and_counted(
    run: MakeRun, step_wise: bool
) -> None:
    made = run("good", max_sequence_tokens=150, step_wise=step_wise, env_kwargs={"first": 400})
    output = await made.generate()
    assert made.client.requests == []
    assert [sum(mask) for mask in output["loss_masks"]] == [0, 0]
    assert [len(prompt) for prompt in output["prompt_token_ids"]] == [1, 1]
    assert output["rollout_metrics"]["envkit_mean/stop/context_tokens/share"] == 1.0
    await made.train(output)


async def test_skyrl_must_hold_11_every_row_has_tensors_that_match_its_placeholders(
    run: MakeRun,
) -> None:
    made = run(
        policy=lambda ask: "boom" if ask.member == 1 else "good",
        vision=True,
        step_wise=True,
        prompts=2,
    )
    arguments: tuple[dict[str, Any], ...] = ({"pictures": True}, {"pictures": False})
    rows = [EpisodeRequest(env_id="obey-v0", env_kwargs=one) for one in arguments]
    output = await made.generate(rows)
    token = made.codec.media_ids[0]
    for prompt, response, pixels, grid in zip(
        output["prompt_token_ids"], output["response_ids"],
        output["pixel_values"], output["image_grid_thw"], strict=True,
    ):  # fmt: skip
        assert pixels is not None
        assert grid is not None
        assert grid.shape[1:] == (3,)
        assert (prompt + response).count(token) * 4 == len(pixels) == int(grid.prod(-1).sum())


@pytest.mark.parametrize("env", ["obey-v0", "plain-v0"])
async def test_skyrl_must_hold_12_no_failure_of_an_environment_leaves_generate(
    run: MakeRun, env: str
) -> None:
    replies = ("good", "boom", "crash", "flaky")
    made = run(policy=lambda ask: replies[ask.member], samples=4, env=env)
    output = await made.generate()
    trained = [sum(mask) > 0 for mask in output["loss_masks"]]
    assert trained[:3] == [True, False, False]
    assert (
        trained[3] is (env == "obey-v0") or output["rollout_metrics"]["envkit/retry/restart"] == 1
    )
    await made.train(output)


async def test_skyrl_must_hold_13_metric_names_say_how_they_are_joined(run: MakeRun) -> None:
    made = run(
        policy=lambda ask: ("good", "boom", "bad", "?")[ask.member], samples=4,
        env_kwargs={"rounds": 9}, generator={"max_turns": 3},
    )  # fmt: skip
    output = await made.generate()
    names = [name for name in output["rollout_metrics"] if name.startswith("envkit")]
    assert len(names) > 30
    for name in names:
        last = name.rpartition("/")[2]
        if last in ("min", "max"):
            assert not any(other in name for other in ("avg", "mean"))
            assert last == "min" or "min" not in name
        elif last in ("mean", "p50", "p95", "std", "share", "rate"):
            assert "mean" in name
        elif "mean" not in name:  # counts are added up
            assert not any(other in name for other in ("avg", "min", "max")), name
    assert "env_metrics" not in output  # they would need an env_class that skyrl-gym knows
    assert all(math.isfinite(value) for value in output["rollout_metrics"].values())


async def test_skyrl_must_hold_14_generate_may_be_called_concurrently(run: MakeRun) -> None:
    made = run(policy=lambda ask: "good", samples=4, env="plain-v0")
    uids = [str(index) for index in range(6)]
    outputs = await asyncio.gather(*(made.generate(uids=[uid]) for uid in uids))
    for uid, output in zip(uids, outputs, strict=True):
        assert output["trajectory_ids"] == [TrajectoryID(uid, member) for member in range(4)]
        assert [sum(row) for row in output["rewards"]] == [0.75] * 4
        # A group plays one task from one state; groups differ.
        assert len({tuple(prompt) for prompt in output["prompt_token_ids"]}) == 1
    assert len({tuple(output["prompt_token_ids"][0]) for output in outputs}) > 1
    sessions = {request["session"] for request in made.client.requests}
    assert len(sessions) == 24
    assert sorted(made.client.finished) == sorted(sessions)


async def test_a_run_that_can_play_nothing_says_why(run: MakeRun) -> None:
    made = run("good")
    rows = [EpisodeRequest(env_id="obay-v0")]
    with pytest.raises(ConfigurationError, match=r"none of 2 samples .* Did you mean 'obey-v0'"):
        await made.generate(rows)


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
