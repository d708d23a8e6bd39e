"""Faulted rollouts under TRL's real trainers, also with several reward functions of any kind."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes.gradients import LossCase, Policy, Reduction
from fakes.gradients.of_trl import _by_function, _small
from fakes.grpo_trainer import CANARY, benches, prepare
from fakes.trl_run import byte_tokenizer, grpo_arguments, grpo_trainer, qwen3_template, spy_on_loss

from envkit.rollout import EpisodeRequest, ScriptedEngine
from envkit.tokens import ChatCodec
from envkit.trajectory import StopReason, Trajectory
from envkit_trl import env_reward, environment_factory, make_rollout_func, request_dataset
from envkit_trl.samples import RowSettings, group_samples

FOUR: dict[str, Any] = {"num_generations": 4, "per_device_train_batch_size": 4}


def _brief(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Score everything, as a user's functions do; a fault's single end token scores best."""
    return [5.0 if len(ids) == 1 else 1.0 for ids in completion_ids]


async def _brief_later(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return _brief(completion_ids)


async def _no_weights(model: Any, version: str) -> None:
    del model, version


@pytest.fixture
def unlucky() -> Iterator[Any]:
    """Return a rollout function with four equal rewards, the first of which is lost to a fault."""
    engine = ScriptedEngine(ChatCodec(byte_tokenizer()), lambda _: "abc")
    rollout: Any = make_rollout_func(engine=engine, send_weights=_no_weights)
    prepare_player = rollout.prepare

    def prepared(trainer: Any) -> Any:
        player = prepare_player(trainer)
        play = player.play

        def spoil(requests: Any) -> Any:
            first, *others = play(requests)
            return (replace(first, stop_reason=StopReason.ENGINE_FAULT, reward=None), *others)

        player.play = spoil
        return player

    rollout.prepare = prepared
    yield rollout
    rollout.close()


@pytest.mark.parametrize(
    ("reward_funcs", "changes"),
    [
        ([env_reward, _brief], {}),
        ([_brief, env_reward, _brief_later], {"reward_weights": [0.5, 2.0, 3.0]}),
        ([env_reward, _brief], {"reward_weights": [0.0, 1.0]}),
        ([env_reward, _brief], {"multi_objective_aggregation": "normalize_then_sum"}),
        ([env_reward, _brief], {"scale_rewards": "none"}),
        (_brief, {}),
    ],
)
def test_trl_fault_is_left_out_with_any_reward_functions(
    tmp_path: Path, unlucky: Any, reward_funcs: Any, changes: dict[str, Any]
) -> None:
    request = EpisodeRequest(env_id="toy-letters-v0", seed=3)
    trainer = grpo_trainer(
        tmp_path,
        request_dataset([request] * 4),
        reward_funcs=reward_funcs,
        rollout_func=unlucky,
        arguments={**FOUR, **changes},
    )
    losses = spy_on_loss(trainer)
    trainer.train()
    assert [t.reward for t in unlucky.trajectories] == [None, *[pytest.approx(3.0)] * 3]
    assert losses[0]["advantages"].tolist() == [0.0] * 4
    log = trainer.state.log_history[0]
    weights = changes.get("reward_weights") or [1.0] * len(trainer.reward_funcs)
    scores = [3.0 if function is env_reward else 1.0 for function in trainer.reward_funcs]
    expected = sum(weight * score for weight, score in zip(weights, scores, strict=True))
    assert log["reward"] == pytest.approx(expected)  # of the three that have one


def test_trl_vision_trainer_leaves_a_fault_out_with_two_reward_functions(tmp_path: Path) -> None:
    prepare()
    request = EpisodeRequest(env_id="toy-fails-at-once-v0", env_kwargs=CANARY)
    with benches(tmp_path) as make:
        made = make(request, options={"reward_funcs": [env_reward, _brief]}, **FOUR)
        made.train()
        assert all(t.reward is None for t in made.trainer.trajectories)
        assert made.losses[0]["advantages"].tolist() == [0.0] * 4
        assert made.trainer.state.log_history[0]["reward"] is None  # TRL's form of NaN


def test_trl_tool_loop_leaves_a_fault_out_with_two_reward_functions(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(qwen3_template())
    trainer = grpo_trainer(
        tmp_path,
        request_dataset([EpisodeRequest(env_id="toy-letters-v0", seed=1)] * 4, style="tools"),
        tokenizer=tokenizer,
        environment_factory=environment_factory("toy-letters-v0"),
        reward_funcs=_brief,
        arguments={**FOUR, "max_completion_length": 1024},
    )
    losses, turns = spy_on_loss(trainer), iter(range(10))

    def generate(prompt_ids: Any, *_: Any, **__: Any) -> Any:
        is_first = next(turns) == 0
        if not is_first:
            trainer.environments[0]._fault = OSError("the backend is gone")
        call = '<tool_call>\n{"name": "reply", "arguments": {"text": "abc"}}\n</tool_call>'
        text = "<think>\n\n</think>\n\n" + (call if is_first else "Done.")
        return [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for _ in prompt_ids], None

    trainer._generate_single_turn = generate
    trainer.train()
    assert [environment.get_reward() for environment in trainer.environments] == [None, 1, 1, 1]
    assert losses[0]["advantages"].tolist() == [0.0] * 4


def _given(played: tuple[Trajectory, ...], _: object) -> tuple[Trajectory, ...]:
    return played


def _played(policy: Policy, name: str) -> tuple[Trajectory, ...]:
    return _small(failure_group(name), policy, LossCase(reduction=Reduction.TOKEN_MEAN))


def test_trl_effects_of_failures_are_the_documented_ones(tmp_path: Path) -> None:
    policy = Policy()

    def batches(scale: str) -> dict[str, Any]:
        args = grpo_arguments(
            tmp_path, num_generations=4, max_completion_length=1024, scale_rewards=scale
        )
        trainer, player = _by_function(policy, copy.deepcopy(policy.model), args)
        found: dict[str, Any] = {}
        for name in FAILURES:
            played = _played(policy, name)
            play: Any = partial(_given, played)
            player.play = play
            rows: list[Any] = [dict(row) for row in trainer.train_dataset]
            found[name] = trainer._generate_and_score_completions(rows)
        player.close()
        return found

    centred, scaled = batches("none"), batches("group")

    def effect(name: str) -> Effect:
        batch = centred[name]
        return Effect(
            rows=len(batch["advantages"]) - 3,
            trained_tokens=int((batch["completion_mask"] * batch["tool_mask"])[3].sum()),
            centred=tuple(batch["advantages"][:3].tolist()),
            scaled=tuple(scaled[name]["advantages"][:3].tolist()),
        )

    check_effects("trl", {name: effect(name) for name in FAILURES})


def test_trl_async_effects_of_failures_are_the_documented_ones() -> None:
    policy = Policy()

    def samples(played: Sequence[Trajectory], *, is_scaled: bool) -> list[Any]:
        settings = RowSettings(end_id=policy.filler_id, is_scaled=is_scaled)
        return group_samples(played, group_id=0, version=0, settings=settings)[0]

    def effect(name: str) -> Effect:
        played = _played(policy, name)
        centred = samples(played, is_scaled=False)
        return Effect(
            rows=len(centred) - 3,
            trained_tokens=sum(int(one.completion_mask.sum()) for one in centred[3:]),
            centred=tuple(one.advantage for one in centred[:3]),
            scaled=tuple(one.advantage for one in samples(played, is_scaled=True)[:3]),
        )

    check_effects("trl-async", {name: effect(name) for name in FAILURES})
