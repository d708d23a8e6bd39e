"""Failures, aborts and bad settings: a valid masked sample, or one clear error."""

import asyncio
import itertools
import json
import shutil
import uuid
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.lost_backend import LOST, PATIENT, QUICK, check_ends, check_waits, register_lost
from fakes.models import tiny_model_dir
from fakes.verl_checks import check_batch, check_row
from fakes.verl_worker import Bench, Run, Sample
from omegaconf.errors import OmegaConfBaseException
from verl.trainer.ppo import core_algos
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import TokenOutput

from envkit.errors import ConfigurationError, RunFailedError, UnknownNameError
from envkit.rollout import EpisodeRequest

Make = Callable[..., Bench]
ROUTING = {"actor_rollout_ref__rollout__enable_rollout_routing_replay": True}
LOST_COLUMN = EpisodeRequest(env_id=LOST).to_column()


def steps(**kwargs: Any) -> str:
    return EpisodeRequest(env_id="verl-steps-v0", env_kwargs=kwargs).to_column()


def up(text: str, images: list[Any]) -> str:
    del text, images
    return "up"


def one_row(run: Run) -> dict[str, Any]:
    (row,) = run.rows
    check_row(row)
    return row


def padded(rows: list[dict[str, Any]], key: str) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([row[key] for row in rows], batch_first=True)


async def test_verl_fault_stays_out_of_its_group(bench: Make, version: str) -> None:
    """One of four members fails: V1 gets no row of it, V0 one with mask 0 and the others' mean."""
    replies = itertools.cycle(["up", "down"])
    column = steps(fails_at=1, fails_for=1, tag=uuid.uuid4().hex)
    made = bench(version, lambda *_: next(replies), loop={"envkit": QUICK})
    run = await made.run([Sample(envkit=column)], n=4)
    others = [row["reward_score"] for row in run.rows if not row["envkit_failed"]]
    assert len(others) == 3
    check_batch(run.rows)
    if version == "v1":
        assert len(run.rows) == 3
        assert run.raw.statuses[-1] == ("u0", "finished")
        return
    (failed,) = (row for row in run.rows if row["envkit_failed"])
    assert not failed["response_mask"].any()
    assert failed["reward_score"] == pytest.approx(sum(others) / 3)
    assert failed["reward_score"] > 0
    assert failed["reward_extra_info"]["envkit/faults"] == 1.0
    assert "backend" not in failed["envkit_problem"]  # columns stay short; the log has everything


@pytest.mark.parametrize("is_scaled", [True, False])
async def test_verl_v0_warns_that_a_fault_counts_in_the_deviation(
    bench: Make, caplog: pytest.LogCaptureFixture, is_scaled: bool
) -> None:
    made = bench("v0", up, algorithm__norm_adv_by_std_in_grpo=is_scaled)
    await made.run([Sample(envkit=steps(fails_at=0))])
    assert ("norm_adv_by_std_in_grpo=false" in caplog.text) == is_scaled


async def test_verl_group_in_which_every_member_faulted_still_trains(
    bench: Make, version: str
) -> None:
    """Rewards are floats, masks are 0, and verl's own advantage and loss stay finite."""
    samples = [Sample(envkit=steps(fails_at=0), uid="bad"), Sample(envkit=steps(), uid="good")]
    run = await bench(version, up).run(samples, n=2)
    for row in run.rows:
        check_row(row)
    bad = [row for row in run.rows if row["uid"] == "bad"]
    assert [row["reward_score"] for row in bad] == [0.0, 0.0]
    assert not any(row["response_mask"].any() for row in bad)
    mask = padded(run.rows, "response_mask")
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        token_level_rewards=padded(run.rows, "rm_scores"),
        response_mask=mask,
        index=np.array([row["uid"] for row in run.rows], dtype=object),
    )
    assert torch.isfinite(advantages).all()
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        loss = core_algos.agg_loss(advantages, mask, mode)
        assert torch.isfinite(loss), mode


@pytest.mark.parametrize("bad_first", [True, False])
async def test_verl_fault_before_the_first_reply_has_its_routed_experts(
    bench: Make, version: str, bad_first: bool, tmp_path: Path
) -> None:
    """No server has told the shape of routed experts yet; the model's config.json does."""
    made = _routing_bench(bench, version, tmp_path)
    samples = [Sample(envkit=steps(fails_at=-1), uid="bad"), Sample(envkit=steps(), uid="good")]
    run = await made.run(samples if bad_first else samples[::-1])
    assert sorted(row["envkit_failed"] for row in run.rows) == [0, 1]
    for row in run.rows:
        check_row(row)
        assert row["routed_experts"].shape == (len(row["input_ids"]), 2, 3)
        assert bool(row["routed_experts"].any()) == (not row["envkit_failed"])
    check_batch(run.rows)


async def test_verl_chunk_of_faults_only_has_its_routed_experts(
    bench: Make, version: str, tmp_path: Path
) -> None:
    made = _routing_bench(bench, version, tmp_path)
    run = await made.run([Sample(envkit=steps(fails_at=-1))], n=2)
    assert [row["routed_experts"].shape for row in run.rows] == [(2, 2, 3)] * 2


async def test_verl_model_without_routing_information_is_a_clear_error(bench: Make) -> None:
    made = bench("v0", up, **ROUTING)
    with pytest.raises(ConfigurationError, match=r"num_experts_per_tok.*enable_rollout_routing"):
        await made.run([Sample(envkit=steps(fails_at=-1))])


async def test_verl_reply_without_its_routed_experts_is_not_trained(
    bench: Make, version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Zeros in their place would train the reply through experts that did not write it."""
    made = _routing_bench(bench, version, tmp_path)
    routed: Any = made.server.policy
    asked = itertools.count()

    def forgets(text: str, images: list[Any]) -> TokenOutput:
        output = routed(text, images)
        return (
            output.model_copy(update={"routed_experts": None}) if next(asked) % 4 == 1 else output
        )

    made.server.policy = forgets
    column = steps(rounds=1)
    run = await made.run([Sample(envkit=column, uid="a"), Sample(envkit=column, uid="b")], n=2)
    for row in run.rows:
        assert row["routed_experts"].any() or not row["response_mask"].any()
    assert sum(bool(row["response_mask"].any()) for row in run.rows) == 3
    assert "routed experts" in caplog.text


def _routing_bench(bench: Make, version: str, folder: Path) -> Bench:
    """Return a bench whose server routes each token to the experts 1, in 2 layers, 3 a token."""
    model = shutil.copytree(tiny_model_dir("llama"), folder / "moe")
    config = json.loads((model / "config.json").read_text())
    moe = {"num_hidden_layers": 2, "num_experts_per_tok": 3}
    (model / "config.json").write_text(json.dumps({**config, **moe}))

    def routed(text: str, images: list[Any]) -> TokenOutput:
        del text, images
        ids = [*made.worker.tokenizer.encode("up", add_special_tokens=False)]
        ids.append(made.worker.tokenizer.eos_token_id)
        length = len(made.server.calls[-1].prompt_ids) + len(ids) - 1
        return TokenOutput(
            token_ids=ids,
            log_probs=[-1.0] * len(ids),
            stop_reason="completed",
            routed_experts=np.ones((length, 2, 3), dtype=np.int16),
            extra_fields={"global_steps": 7},
        )

    made = bench(version, routed, model=model, **ROUTING)
    generate = made.server.generate

    async def late(*arguments: Any, **named: Any) -> TokenOutput:
        await asyncio.sleep(0.1)  # the faults come first
        return await generate(*arguments, **named)

    made.server.generate = late
    return made


async def test_verl_first_turn_aborted_never_makes_the_prompt_a_response(
    bench: Make, version: str
) -> None:
    """verl's own loop turns the whole prompt into a trained response here."""

    def aborted(text: str, images: list[Any]) -> TokenOutput:
        del text, images
        return TokenOutput(token_ids=[], log_probs=None, stop_reason="aborted")

    row = one_row(await bench(version, aborted).run([Sample(envkit=steps())]))
    assert row["envkit_failed"] == 1
    assert row["envkit_stop_reason"] == "aborted"
    assert len(row["responses"]) == 1
    assert not row["response_mask"].any()
    assert row["reward_extra_info"]["envkit/aborted"] == 1.0


async def test_verl_partial_rollout_inside_the_client_mixes_weight_versions(
    bench: Make, version: str
) -> None:
    """verl's asynchronous client resumes aborted replies itself; both versions are recorded."""
    answers = iter([
        TokenOutput(token_ids=[5, 6], log_probs=[-1.0, -1.0], stop_reason="aborted",
                    extra_fields={"global_steps": 7}),
        TokenOutput(token_ids=[8, 2], log_probs=[-1.0, -1.0], stop_reason="completed",
                    extra_fields={"global_steps": 8}),
    ])  # fmt: skip
    made = bench(version, lambda *_: next(answers), client_class=FullyAsyncLLMServerClient)
    row = one_row(await made.run([Sample(envkit=steps(rounds=1))]))
    assert row["responses"].tolist() == [5, 6, 8, 2]
    assert (row["min_global_steps"], row["max_global_steps"]) == (7, 8)
    budgets = [call.params["max_tokens"] for call in made.server.calls]
    assert budgets[1] == budgets[0] - 2


async def test_verl_dead_server_gives_masked_samples_and_a_log_line(
    bench: Make, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = bench(version, lambda *_: ValueError("bad request"))
    row = one_row(await made.run([Sample(envkit=steps())]))
    assert row["envkit_failed"] == 1
    assert row["envkit_problem"] == "permanent fault at generate"
    assert "bad request" in caplog.text
    assert len(made.server.calls) == 1  # a permanent failure is not retried


async def test_verl_images_without_a_processor_are_a_fault(
    bench: Make, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """verl swallows an unsupported processor; images must not then become plain text."""
    column = EpisodeRequest(env_id="verl-colours-v0").to_column()
    made = bench(version, up)
    row = one_row(await made.run([Sample(envkit=column)]))
    assert made.worker.processor is None
    assert row["envkit_failed"] == 1
    assert "image processor" in caplog.text


async def test_verl_reply_cut_by_max_tokens_is_closed_by_the_codec(
    bench: Make, version: str
) -> None:
    """A reply without its stop token: the closing tokens follow it with mask 0."""
    loop = {"envkit": {"sampling": {"max_new_tokens": 3}}}
    made = bench(version, lambda *_: "up up up up up up", loop=loop)
    row = one_row(await made.run([Sample(envkit=steps(rounds=2))]))
    stop = made.worker.tokenizer.eos_token_id
    assert row["response_mask"][:3].tolist() == [1, 1, 1]
    assert row["responses"][3] == stop
    assert row["response_mask"][3] == 0
    assert row["reward_score"] == pytest.approx(0.5)


async def test_verl_max_tokens_beyond_the_context_is_clamped(bench: Make, version: str) -> None:
    loop = {"envkit": {"sampling": {"max_new_tokens": 100_000}}}
    made = bench(version, lambda *_: "up " * 500, loop=loop, max_model_len=64)
    row = one_row(await made.run([Sample(envkit=steps())]))
    assert len(row["prompts"]) + len(row["responses"]) == 64
    assert row["envkit_stop_reason"] == "context_tokens"
    assert row["reward_extra_info"]["envkit/truncated"] == 1.0


async def test_verl_row_without_an_environment_is_a_clear_error(bench: Make) -> None:
    with pytest.raises(ConfigurationError, match="no environment is named"):
        await bench("v0", up).run([Sample()])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reward__custom_reward_function__path", "/rewards.py"),
        ("reward__reward_manager__name", "dapo"),
        ("reward__reward_kwargs__overlong_buffer_cfg__enable", True),
        ("reward__reward_model__enable", True),
    ],
)
async def test_verl_settings_without_an_effect_are_refused(
    bench: Make, key: str, value: object
) -> None:
    place = key.replace("__", ".")
    with pytest.raises(ConfigurationError, match=rf"{place}={value} has no effect"):
        await bench("v0", up, **{key: value}).run([Sample(envkit=steps())])


async def test_verl_tools_of_its_own_are_refused(bench: Make, tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text("tools: []")
    tools = {"actor_rollout_ref__rollout__multi_turn__tool_config_path": str(path)}
    with pytest.raises(ConfigurationError, match=r"multi_turn.tool_config_path=.*has no effect"):
        await bench("v0", up, **tools).run([Sample(envkit=steps())])


@pytest.mark.parametrize(("users", "assistants", "turns"), [(1, None, 2), (3, 2, 2), (1, 3, 2)])
async def test_verl_max_user_turns_ends_an_episode(
    bench: Make, version: str, users: int, assistants: int | None, turns: int
) -> None:
    limits: dict[str, Any] = {
        "actor_rollout_ref__rollout__multi_turn__max_user_turns": users,
        "actor_rollout_ref__rollout__multi_turn__max_assistant_turns": assistants,
    }
    row = one_row(await bench(version, up, **limits).run([Sample(envkit=steps(rounds=5))]))
    assert row["reward_score"] == pytest.approx(0.25 * turns)


async def test_verl_dataset_that_no_episode_reads_is_refused(bench: Make) -> None:
    """The environment would draw its own tasks, and the curve would look healthy."""
    named = {"envkit": {"env_id": "verl-steps-v0"}}
    with pytest.raises(ConfigurationError, match="no episode of verl-steps-v0 reads it"):
        await bench("v0", up, loop=named).run([Sample(extra_info={"index": 3})])
    drawn = {"envkit": {"env_id": "verl-steps-v0", "draw_tasks": True}}
    assert len((await bench("v0", up, loop=drawn).run([Sample()])).rows) == 1
    seeded = Sample(extra_info={"seed": 3})
    assert len((await bench("v0", up, loop=named).run([seeded])).rows) == 1


async def test_verl_unknown_environment_is_a_clear_error(bench: Make) -> None:
    column = EpisodeRequest(env_id="verl-stepz-v0").to_column()
    with pytest.raises(UnknownNameError, match="verl-steps-v0"):
        await bench("v0", up).run([Sample(envkit=column)])


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ({"envkti": {}}, "did you mean 'envkit'"),
        ({"limits": {"max_turns": 3}}, "under 'envkit:'"),
        ({"envkit": {"limitz": {}}}, "Did you mean 'limits'"),
        ({"envkit": {"engine": {"timeout": 3}}}, "timeout_s"),
        ({"rewards": "all"}, "rewards must be one of"),
    ],
)
async def test_verl_misspelt_options_are_refused(
    bench: Make, loop: dict[str, Any], message: str
) -> None:
    """verl's own base class would swallow them."""
    made = bench("v0", up, loop=loop)
    with pytest.raises(Exception, match=message):
        await made.run([Sample(envkit=steps())])


async def test_verl_raw_logprobs_at_another_temperature_are_refused(bench: Make) -> None:
    made = bench(
        "v0",
        up,
        actor_rollout_ref__rollout__logprobs_mode="raw_logprobs",
        actor_rollout_ref__rollout__temperature=0.7,
    )
    with pytest.raises(ConfigurationError, match="processed_logprobs"):
        await made.run([Sample(envkit=steps())])


async def test_verl_validation_samples_greedily(bench: Make, version: str) -> None:
    made = bench(version, up)
    made.config.actor_rollout_ref.rollout.val_kwargs.temperature = 0

    run = await made.run([Sample(envkit=steps())], validate=True)
    check_row(run.rows[0])
    assert {call.params["temperature"] for call in made.server.calls} == {0.0}


def test_verl_tests_run_the_release_they_name() -> None:
    assert metadata.version("verl") == "0.9.1"


async def test_verl_v1_wrong_setting_ends_the_training(bench: Make) -> None:
    made = bench("v1", up)
    await made.run([Sample()])
    with pytest.raises(OmegaConfBaseException, match="no environment is named"):
        await made.run([Sample()])


async def test_verl_ends_after_its_backend_was_killed(bench: Make, version: str) -> None:
    register_lost()
    made, samples = bench(version, up, loop={"envkit": QUICK}), [Sample(envkit=LOST_COLUMN)]
    assert len((await made.run(samples, n=4)).rows) == 4
    # V1 passes an error on only through its configuration, with our message.
    kind = RunFailedError if version == "v0" else OmegaConfBaseException
    await check_ends(lambda: made.run(samples, n=4), kind=kind)


async def test_verl_goes_on_when_its_backend_is_back(bench: Make, version: str) -> None:
    register_lost()
    made, samples = bench(version, up, loop={"envkit": PATIENT}), [Sample(envkit=LOST_COLUMN)]
    await check_waits(lambda: made.run(samples, n=4))
    run = await made.run(samples, n=4)
    assert [row["reward_score"] for row in run.rows[-4:]] == [1.0] * 4


async def test_verl_stop_string_that_is_a_special_token_ends_the_reply(
    bench: Make, version: str
) -> None:
    """vLLM looks for stop strings in text without special tokens unless told otherwise."""
    loop = {"envkit": {"sampling": {"stop": ["<|vision_end|>"]}}}
    made = bench(version, lambda *_: "up<|vision_end|>down", loop=loop, model="qwen2_5_vl")
    assert "<|vision_end|>" in made.server.tokenizer.all_special_tokens
    row = one_row(await made.run([Sample(envkit=steps())]))
    assert row["envkit_stop_reason"] == "terminated"
    replies = [made.server.tokenizer.decode(call.reply) for call in made.server.calls]
    assert set(replies) == {"up<|vision_end|>"}
    assert row["response_mask"].any()
