"""The trainer subclass under TRL's real GRPOTrainer: images of every turn in the loss."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from fakes.codecs import vision_codec
from fakes.grpo_trainer import CANARY, CANARY_REQUEST, Bench, benches, prepare

from envkit.errors import (
    ConfigurationError,
    LedgerFault,
    UnknownNameError,
)
from envkit.rollout import ScriptedEngine
from envkit.rollout.config import RolloutConfig
from envkit.rollout.request import EpisodeRequest
from envkit.trajectory.stop import StopReason
from envkit_canary import CanaryEnv
from envkit_trl.trainer import Mismatch


@pytest.fixture(autouse=True, scope="module")
def environments() -> None:
    prepare()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with benches(tmp_path) as make:
        yield make


def _oracle(**options: Any) -> Any:
    """Return an engine that solves the canary and takes no weights."""
    return ScriptedEngine(vision_codec(), CanaryEnv(**CANARY, **options).oracle())


def _differing(env_reward: list[float | None], **_: Any) -> list[float]:
    """Give members of a group different rewards: random weights would earn none."""
    return [float(number % 2) for number in range(len(env_reward))]


MOVING: dict[str, Any] = {"reward_funcs": [_differing]}


async def _no_weights(model: Any, version: str) -> None:
    del model, version


def _ids(bench: Bench) -> list[list[int]]:
    """Return the completions of the loss, without padding."""
    inputs = bench.losses[0]
    masks = inputs["completion_mask"].bool()
    return [ids[mask].tolist() for ids, mask in zip(inputs["completion_ids"], masks, strict=True)]


def test_trl_must_hold_1_rows_follow_the_prompts_and_groups_play_one_task(bench: Any) -> None:
    seeds = (5, 7, 11, 13)
    made = bench(*(dataclasses.replace(CANARY_REQUEST, seed=seed) for seed in seeds))
    made.train()
    played = made.trainer.trajectories
    assert [t.seed for t in played] == [5, 5, 7, 7]
    assert played[0].task == played[1].task != played[2].task
    assert played[0].train_ids() != played[1].train_ids()  # siblings sample for themselves


def test_trl_seedless_requests_share_a_seed_by_group_and_differ_by_step(bench: Any) -> None:
    made = bench(max_steps=2)
    seen: list[list[int]] = []
    play = made.trainer.player.play

    def spy(requests: Any) -> Any:
        found = play(requests)
        seen.append([t.seed for t in found])
        return found

    made.trainer.player.play = spy
    made.train()
    assert [seeds[0::2] == seeds[1::2] for seeds in seen] == [True, True]
    assert len({seed for seeds in seen for seed in seeds}) == 4


def test_trl_must_hold_2_mask_is_one_exactly_on_sampled_tokens(bench: Any) -> None:
    made = bench()
    made.train()
    inputs = made.losses[0]
    mask = (inputs["tool_mask"] * inputs["completion_mask"]).bool()
    trained = sorted(ids[m].tolist() for ids, m in zip(inputs["completion_ids"], mask, strict=True))
    sampled = sorted(
        [i for i, m in zip(t.train_ids(), t.loss_mask(), strict=True) if m]
        for t in made.trainer.trajectories
    )
    assert trained == sampled
    assert not bool(mask.all())  # there are observations in between
    assert inputs["sampling_per_token_logps"].shape == mask.shape


def test_trl_codec_of_the_processing_class_takes_ids_of_the_embeddings_padding(bench: Any) -> None:
    made = bench(options={"codec": None}).trainer
    embeddings = made.model.get_input_embeddings().num_embeddings
    assert len(made.processing_class.tokenizer) < embeddings
    assert made.player.codec.vocabulary_size == embeddings


def test_trl_must_hold_3_completion_is_never_empty_and_ends_on_a_sampled_token(bench: Any) -> None:
    made = bench(engine=_oracle(), options={"send_weights": _no_weights})
    made.train()
    end = made.trainer.eos_token_ids
    masks = made.losses[0]["tool_mask"] * made.losses[0]["completion_mask"]
    for ids, mask, whole in zip(_ids(made), masks, made.losses[0]["completion_mask"], strict=True):
        assert ids
        assert ids[-1] in end
        assert int(mask[int(whole.sum()) - 1]) == 1


def test_trl_must_hold_4_completion_is_capped_and_no_observation_is_cut(bench: Any) -> None:
    whole = bench()
    whole.train()
    longest = max(map(len, _ids(whole)))
    made = bench(max_completion_length=longest - 1)
    made.train()
    reasons = {t.stop_reason for t in made.trainer.trajectories}
    assert StopReason.RESPONSE_TOKENS in reasons
    lengths = [len(ids) for ids in _ids(made)]
    assert max(lengths) <= longest - 1
    assert made.trainer.state.log_history[0]["completions/clipped_ratio"] > 0
    for trajectory in made.trainer.trajectories:
        assert trajectory.loss_mask()[-1] == 1


def test_trl_must_hold_5_failed_rollout_is_masked_and_unscorable_never_zero(bench: Any) -> None:
    requests = [
        EpisodeRequest(env_id="toy-failing-v0", env_kwargs=CANARY, task=_task(look))
        for look in (1, 2)
    ]
    made = bench(*requests, engine=_oracle(), options={"send_weights": _no_weights})
    columns: list[Any] = []
    generate = made.trainer._generate

    def spy(prompts: Any) -> Any:
        columns.append(generate(prompts))
        return columns[-1]

    made.trainer._generate = spy
    made.train()
    prompts, completions, masks, _, logprobs, extra, images, _ = columns[0]
    end = made.trainer.eos_token_ids[0]
    assert completions[:2] == [[end]] * 2
    assert (masks[:2], logprobs[:2]) == ([[0]] * 2, [[0.0]] * 2)
    assert extra["env_reward"] == [None, None, 1.0, 1.0]
    assert len(prompts) == 4
    assert images[:2] == [[], []]
    assert [len(row) for row in images[2:]] == [3, 3]
    assert not bool(made.losses[0]["advantages"].any())
    log = made.trainer.state.log_history[0]
    assert log["envkit/faults"] == 2
    assert log["reward"] == pytest.approx(1.0)  # the mean of those that have one


def test_trl_must_hold_5_faulted_member_stays_out_of_its_groups_baseline(bench: Any) -> None:
    request = EpisodeRequest(env_id="canary-v0", env_kwargs=CANARY, task=_task(2))
    made = bench(
        request, per_device_train_batch_size=3, num_generations=3,
        engine=_oracle(), options={"send_weights": _no_weights}, scale_rewards="none",
    )  # fmt: skip
    play = made.trainer.player.play

    def spoil(requests: Any) -> Any:
        first, second, third = play(requests)
        return (
            dataclasses.replace(first, stop_reason=StopReason.ENGINE_FAULT, reward=None),
            dataclasses.replace(second, reward=0.5),
            third,
        )

    made.trainer.player.play = spoil
    made.train()
    assert sorted(made.losses[0]["advantages"].tolist()) == pytest.approx([-0.25, 0.0, 0.25])


def test_trl_batch_of_faults_only_keeps_the_training_running(bench: Any) -> None:
    made = bench(EpisodeRequest(env_id="toy-fails-at-once-v0", env_kwargs=CANARY), max_steps=1)
    before = copy.deepcopy(made.model.state_dict())
    made.train()
    assert made.trainer.state.global_step == 1
    assert all(t.is_faulted for t in made.trainer.trajectories)
    assert all(torch.isfinite(p).all() for p in made.model.parameters())
    assert all(torch.equal(before[name], value) for name, value in made.model.state_dict().items())


def test_trl_must_hold_6_extra_column_has_an_entry_for_each_row(bench: Any) -> None:
    seen: list[Any] = []

    def length_reward(env_reward: list[float | None], **_: Any) -> list[float]:
        seen.append(env_reward)
        return [0.0] * len(env_reward)

    made = bench(options={"reward_funcs": [length_reward]})
    made.train()
    assert [len(rewards) for rewards in seen] == [4]
    assert seen[0] == [t.reward for t in made.trainer.trajectories]


def test_trl_must_hold_7_images_of_every_turn_reach_the_loss(bench: Any) -> None:
    made = bench(options=MOVING)
    vision = {n: p.detach().clone() for n, p in made.model.named_parameters() if "visual" in n}
    made.train()
    inputs, played = made.losses[0], made.trainer.trajectories
    assert [len(t.images()) for t in played] == [3] * 4  # the prompt's and two later ones
    assert len(inputs["image_grid_thw"]) == 12
    assert inputs["mm_token_type_ids"].sum() == 12 * 9
    found = sorted(map(tuple, inputs["pixel_values"][:, ::97].tolist()))
    ledger = np.concatenate([t.tensors()["pixel_values"] for t in played])
    assert found == sorted(map(tuple, ledger[:, ::97].tolist()))
    after = dict(made.model.named_parameters())
    assert not [name for name, before in vision.items() if after[name].equal(before)]


def test_trl_must_hold_7_later_image_changes_the_later_log_probability(bench: Any) -> None:
    made = bench()
    made.train()
    inputs = dict(made.losses[0])
    forward = made.trainer._get_per_token_logps_and_entropies
    names = "pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids"
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    width = inputs["completion_ids"].shape[1]

    def score() -> Any:
        with torch.no_grad():
            return forward(made.model, ids, mask, width, **{n: inputs[n] for n in names})[0][0]

    before = score()
    pixels = inputs["pixel_values"].clone()
    pixels[72:108] = 0.0  # the third image of the first row, 36 patches each
    inputs["pixel_values"] = pixels
    after = score()
    pads = inputs["completion_ids"][0] == made.trainer._image_pad_token_id
    last = int(pads.nonzero()[-1])
    first_of_last = last - 8
    assert torch.allclose(before[:first_of_last], after[:first_of_last], atol=1e-5)
    assert not torch.allclose(before[last + 1 :], after[last + 1 :], atol=1e-4)


def _drop_an_image(bench: Bench) -> None:
    play = bench.trainer.player.play

    def drop(requests: Any) -> Any:
        first, *others = play(requests)
        bare = dataclasses.replace(first.segments[0], images=(), features=())
        return (dataclasses.replace(first, segments=(bare, *first.segments[1:])), *others)

    bench.trainer.player.play = drop


def test_trl_must_hold_8_disagreeing_placeholders_are_refused_before_trl_drops_images(
    bench: Any,
) -> None:
    made = bench()
    _drop_an_image(made)
    with pytest.raises(LedgerFault, match="row 0: 2 images have 2 features of 18 tokens, got 27"):
        made.train()


def test_trl_must_hold_8_batch_without_its_images_is_refused_after_trl_built_it(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit_trl.trainer.check_rows", lambda *_, **__: None)
    made = bench()
    _drop_an_image(made)
    with pytest.raises(LedgerFault, match="TRL dropped the 11 images"):
        made.train()


def test_trl_engine_has_the_trainers_weights_at_every_step(bench: Any) -> None:
    made = bench(max_steps=3, options=MOVING)
    before = copy.deepcopy(made.model.state_dict())
    found: list[Mismatch] = []
    end = made.trainer.callback_handler.on_step_end

    def spy(*arguments: Any) -> Any:
        found.append(made.trainer.mismatch)
        return end(*arguments)

    made.trainer.callback_handler.on_step_end = spy
    made.train()
    assert [m.tokens > 0 for m in found] == [True] * 3
    assert max(m.largest for m in found) < 1e-4
    assert max(m.mean for m in found) < 1e-5
    assert not any(torch.equal(before[n], p) for n, p in made.model.named_parameters())
    assert {v for t in made.trainer.trajectories for v in _versions(t)} == {"2"}
    made.trainer.sync_weights()
    engine_weights = made.engine.model.state_dict()
    for name, value in made.model.state_dict().items():
        assert torch.equal(engine_weights[name], value)
    assert made.engine.weight_version == "3"


def test_trl_media_placeholders_are_out_of_the_trainers_distribution(bench: Any) -> None:
    made = bench()
    head = made.model.get_output_embeddings()
    embedding = made.model.get_input_embeddings().weight
    with torch.no_grad():  # a placeholder that takes most of the probability, which none samples
        embedding[list(vision_codec().media_ids)] *= 8.0
    made.train()
    assert made.trainer.mismatch.tokens > 0
    assert made.trainer.mismatch.largest < 1e-4
    assert head.bias is None


def test_trl_stale_engine_shows_in_the_mismatch(bench: Any) -> None:
    made = bench(max_steps=2, options={**MOVING, "send_weights": _no_weights})
    made.train()
    assert made.trainer.mismatch.largest > 1e-2


def test_trl_text_and_images_mix_in_one_batch(bench: Any) -> None:
    made = bench(EpisodeRequest(env_id="toy-echo-v0"), CANARY_REQUEST)
    made.train()
    assert [len(t.images()) for t in made.trainer.trajectories] == [0, 0, 3, 3]
    assert len(made.losses[0]["image_grid_thw"]) == 6
    assert made.trainer.mismatch.largest < 1e-4


def test_trl_text_alone_trains_a_vision_model(bench: Any) -> None:
    made = bench(EpisodeRequest(env_id="toy-echo-v0"))
    made.train()
    assert "pixel_values" not in made.losses[0]
    assert made.trainer.mismatch.largest < 1e-4


def test_trl_one_turn_episodes_keep_the_images_of_their_prompts(bench: Any) -> None:
    made = bench(EpisodeRequest(env_id="canary-v0", env_kwargs={**CANARY, "turns": 1}))
    made.train()
    assert len(made.losses[0]["image_grid_thw"]) == 4
    assert made.trainer.mismatch.largest < 1e-4


def test_trl_gradient_accumulation_compares_every_row_once(bench: Any) -> None:
    made = bench(per_device_train_batch_size=2, gradient_accumulation_steps=2)
    made.train()
    sampled = sum(sum(t.loss_mask()) for t in made.trainer.trajectories)
    assert len(made.losses) == 2
    assert made.trainer.mismatch.tokens == sampled
    assert made.trainer.mismatch.largest < 1e-4


def test_trl_evaluation_plays_episodes_too(bench: Any) -> None:
    rows = [{"prompt": [{"role": "user", "content": "x"}], "envkit": CANARY_REQUEST.to_column()}]
    made = bench(
        options={"eval_dataset": Dataset.from_list(rows * 2)},
        per_device_eval_batch_size=4,
    )
    metrics = made.trainer.evaluate()
    assert 0.0 <= metrics["eval_reward"] <= 1.0
    assert len(made.trainer.trajectories) == 4


def test_trl_unknown_environment_ends_the_training_with_its_name(bench: Any) -> None:
    made = bench(EpisodeRequest(env_id="no-such-env-v0"))
    with pytest.raises(UnknownNameError, match="no-such-env-v0"):
        made.train()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"rollout_func": lambda *_: {}}}, "rollout_func"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"min_p": 0.1}, "min_p"),
        (
            {"config": RolloutConfig.from_mapping({"sampling": {"temperature": 0.5}})},
            "got 1.0 and 0.5",
        ),
    ],
)
def test_trl_options_that_rollouts_cannot_honour_are_refused(
    bench: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bench(**arguments)


def test_trl_engine_that_takes_no_weights_is_refused(bench: Any) -> None:
    with pytest.raises(ConfigurationError, match="send_weights"):
        bench(engine=_oracle())


def test_trl_trainer_closes_twice(bench: Any) -> None:
    made = bench()
    made.train()
    made.trainer.close()
    made.trainer.close()


def _task(look: int) -> dict[str, Any]:
    return {"codes": ["1", "2", "3"], "look": look}


def _versions(trajectory: Any) -> list[str | None]:
    return [s.weight_version for s in trajectory.segments if s.kind == "model"]
