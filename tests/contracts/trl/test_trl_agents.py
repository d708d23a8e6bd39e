"""Several agents, agents behind the gateway and advantages by turn under TRL's real trainers."""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.agent_rows import DELEGATING, PRAISED, RELAYING, TITLED, runs
from fakes.agents import GuessEnv, register_agents
from fakes.codecs import vision_codec
from fakes.grpo_trainer import CANARY, CANARY_REQUEST, Bench, benches, prepare
from fakes.installed import install_metadata
from fakes.trl_run import async_arguments, byte_tokenizer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from envkit import rollout
from envkit.errors import ConfigurationError
from envkit.tokens import ChatCodec
from envkit_canary import CanaryEnv
from envkit_trl import EnvRolloutWorker, request_dataset
from envkit_trl.batch import BatchPlace, play_batch
from envkit_trl.samples import RowSettings, group_samples

REQUEST = rollout.EpisodeRequest(env_id="toy-guess-v0", task={"number": 3})


@pytest.fixture(autouse=True)
def toys() -> None:
    register_agents()
    prepare()


async def test_group_compares_a_role_with_the_same_role_of_its_group() -> None:
    codec = ChatCodec(byte_tokenizer())
    player = rollout.Player(rollout.ScriptedEngine(codec, GuessEnv().oracle()), codec)
    lost = rollout.Player(rollout.ScriptedEngine(codec, lambda context: "8"), codec)
    played = [
        one
        for each in (player, lost)
        for one in await each.play(
            REQUEST.factory(), rollout.EpisodeSpec(seed=1, task=REQUEST.task)
        )
    ]
    for each in (player, lost):
        await each.aclose()

    samples, _ = group_samples(
        played, group_id=4, version=0, settings=RowSettings(end_id=codec.stop_ids[0])
    )

    assert [sample.metrics["reward"] for sample in samples] == [1.0, 0.0, 0.5, 0.25]
    assert all(isinstance(sample, RolloutSample) for sample in samples)
    assert [round(sample.advantage, 3) for sample in samples] == [0.707, -0.707, 0.707, -0.707]


def test_worker_delivers_rows_of_every_role(tmp_path: Path) -> None:
    codec = ChatCodec(byte_tokenizer())
    worker = EnvRolloutWorker(
        async_arguments(tmp_path),
        request_dataset([REQUEST]),
        engine=rollout.ScriptedEngine(codec, GuessEnv().oracle()),
        codec=codec,
        config={"sampling": {"max_new_tokens": 64}},
    )
    worker.start()
    try:
        samples = [worker.rollout_buffer.get(timeout=60) for _ in range(4)]
    finally:
        worker.stop()

    assert sorted(sample.metrics["reward"] for sample in samples[:4]) == [0.5, 0.5, 1.0, 1.0]


async def test_one_row_for_each_prompt_is_refused() -> None:
    codec = ChatCodec(byte_tokenizer())
    player = rollout.Player(rollout.ScriptedEngine(codec, GuessEnv().oracle()), codec)
    place = BatchPlace(seeds=(0,), first_row=0, group_size=2)
    try:
        with pytest.raises(ConfigurationError, match="AsyncGRPOTrainer"):
            await play_batch(player, [REQUEST], place, sampling=rollout.Sampling())
    finally:
        await player.aclose()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with benches(tmp_path) as make:
        yield make


def settings(agent: str, **options: Any) -> rollout.RolloutConfig:
    sampling = {"max_new_tokens": 6}
    return rollout.RolloutConfig.from_mapping(
        {"agent": f"fakes.own_agents:{agent}", "sampling": sampling, **options}
    )


@pytest.mark.usefixtures("installed")
def test_trl_trains_an_agent_that_asks_for_a_title_besides(bench: Any) -> None:
    """The title makes a sequence of its own and has mask 0, so the episode is one row."""
    made = bench(CANARY_REQUEST, config=settings("titled"))
    made.train()
    inputs, played = made.losses[0], made.trainer.trajectories

    assert [len(one.sequences()) for one in played] == [2] * len(played)
    masks = (inputs["completion_mask"] * inputs["tool_mask"]).tolist()
    assert [len(runs(mask)) for mask in masks] == TITLED * len(masks)
    trained = sorted(
        [token for token, mask in zip(ids, row, strict=True) if mask]
        for ids, row in zip(inputs["completion_ids"].tolist(), masks, strict=True)
    )
    assert trained == sorted(
        [i for segment in one.segments for i, m in zip(segment.train_ids, segment.loss_mask,
                                                       strict=True) if m]
        for one in played
    )  # fmt: skip
    assert inputs["num_images"] == [1] * len(masks)


@pytest.mark.usefixtures("installed")
def test_trl_refuses_an_agent_of_several_rows_and_names_the_trainer_that_takes_it(
    bench: Any,
) -> None:
    made = bench(dataclasses.replace(CANARY_REQUEST), config=settings("delegating"))
    with pytest.raises(ConfigurationError, match="EnvAsyncGRPOTrainer"):
        made.train()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("agent", "replies", "reward"),
    [
        ("titled", TITLED, 0.5),
        ("delegating", DELEGATING, 0.5),
        ("relaying", RELAYING, PRAISED),
    ],
)
def test_trl_worker_gives_every_row_the_reward_of_its_episode(
    agent: str, replies: list[int], reward: float, tmp_path: Path
) -> None:
    codec = ChatCodec(byte_tokenizer())
    worker = EnvRolloutWorker(
        async_arguments(tmp_path),
        request_dataset([rollout.EpisodeRequest(env_id="toy-echo-v0")]),
        engine=rollout.ScriptedEngine(codec, lambda context: "good"),
        codec=codec,
        config={"agent": f"fakes.own_agents:{agent}", "sampling": {"max_new_tokens": 64}},
    )
    worker.start()
    try:
        samples = [worker.rollout_buffer.get(timeout=60) for _ in range(2 * len(replies))]
    finally:
        worker.stop()

    masks = [one.completion_mask for one in samples]
    assert [len(runs(mask)) for mask in masks] == replies * 2
    assert {one.metrics["reward"] for one in samples} == {reward}


def _sometimes_right() -> rollout.ScriptedEngine:
    """Return an engine that is right in turns whose draw, by episode, says so."""
    oracle = CanaryEnv(**CANARY).oracle()

    def reply(context: Any) -> str:
        is_right = next(draws)
        return oracle(context) if is_right else "-"

    draws = cycle([True, False, False, True, True])
    return rollout.ScriptedEngine(vision_codec(), reply)


async def _no_weights(model: Any, version: str) -> None:
    del model, version


def _zero(env_reward: list[float | None], **_: Any) -> list[float]:
    return [0.0] * len(env_reward)


def test_trl_turns_get_their_own_advantages(bench: Any) -> None:
    made = bench(
        engine=_sometimes_right(), options={"turn_discount": 0.0, "send_weights": _no_weights}
    )
    made.train()
    inputs = made.losses[0]
    assert inputs["advantages"].shape == inputs["completion_ids"].shape
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    found = [
        _changes(row[sampled]) for row, sampled in zip(inputs["advantages"], mask, strict=True)
    ]
    expected: list[list[float]] = []
    for first in (0, 2):
        pair = made.trainer.trajectories[first : first + 2]
        rewards = torch.tensor([[turn.reward for turn in t.turns] for t in pair])
        scaled = (rewards - rewards.mean(0)) / (rewards.std(0) + 1e-4)
        expected += [_changes(row) for row in scaled]
    assert sorted(found) == sorted(expected)  # TRL shuffles the rows
    assert len({tuple(row) for row in expected}) > 2


def test_trl_turns_of_an_agent_get_their_own_advantages(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three replies of one conversation is rewarded by the agent itself."""
    monkeypatch.syspath_prepend(str(install_metadata(tmp_path)))
    words = cycle(["good", "bad", "bad", "good", "good"])
    made = bench(
        engine=rollout.ScriptedEngine(vision_codec(), lambda context: next(words)),
        config=rollout.RolloutConfig.from_mapping({"agent": "fakes.own_agents:praising"}),
        options={"turn_discount": 0.5, "send_weights": _no_weights},
        scale_rewards="none",
    )
    made.train()
    inputs = made.losses[0]
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    expected: list[list[float]] = []
    for first in (0, 2):
        pair = made.trainer.trajectories[first : first + 2]
        one, two, three = torch.tensor([[turn.reward for turn in t.turns] for t in pair]).T
        returns = torch.stack([one + two / 2 + three / 4, two + three / 2, three], dim=1)
        expected += [_changes(row) for row in returns - returns.mean(0)]
    found = [_changes(row[one]) for row, one in zip(inputs["advantages"], mask, strict=True)]
    assert sorted(found) == sorted(expected)
    assert len({tuple(row) for row in expected}) > 2


def _changes(values: torch.Tensor) -> list[float]:
    return [round(value, 4) for value in values.unique_consecutive().tolist()]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ({}, {"turn_discount": 1.5}, "from 0 to 1"),
        ({}, {"turn_discount": 0.0, "reward_funcs": [_zero]}, "reward_funcs"),
        ({"scale_rewards": "batch"}, {"turn_discount": 0.0}, "scale_rewards='batch'"),
    ],
)
def test_trl_turn_credit_refuses_what_it_cannot_honour(
    bench: Any, arguments: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bench(options=options, **arguments)
