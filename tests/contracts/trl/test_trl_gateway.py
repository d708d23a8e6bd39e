"""Black-box agents behind the gateway under TRL's real trainers."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.agent_rows import DELEGATING, PRAISED, RELAYING, TITLED, runs
from fakes.grpo_trainer import CANARY_REQUEST, Bench, benches, prepare
from fakes.trl_run import async_arguments, byte_tokenizer

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest, ScriptedEngine
from envkit.rollout.config import RolloutConfig
from envkit.tokens import ChatCodec
from envkit_trl import EnvRolloutWorker, request_dataset

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(autouse=True)
def prepared() -> None:
    """Register the environments."""
    prepare()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with benches(tmp_path) as make:
        yield make


def settings(agent: str, **options: Any) -> RolloutConfig:
    sampling = {"max_new_tokens": 6}
    return RolloutConfig.from_mapping(
        {"agent": f"fakes.own_agents:{agent}", "sampling": sampling, **options}
    )


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


def test_trl_refuses_an_agent_of_several_rows_and_names_the_trainer_that_takes_it(
    bench: Any,
) -> None:
    made = bench(dataclasses.replace(CANARY_REQUEST), config=settings("delegating"))
    with pytest.raises(ConfigurationError, match="EnvAsyncGRPOTrainer"):
        made.train()


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
        request_dataset([EpisodeRequest(env_id="toy-echo-v0")]),
        engine=ScriptedEngine(codec, lambda context: "good"),
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
