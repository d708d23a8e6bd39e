"""Advantages by turn in TRL's real GRPOTrainer."""

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.codecs import vision_codec
from fakes.grpo_trainer import CANARY, Bench, benches, prepare
from fakes.installed import install_metadata

from envkit.errors import ConfigurationError
from envkit.rollout import RolloutConfig, ScriptedEngine
from envkit_canary import CanaryEnv

pytestmark = [
    pytest.mark.trl,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:.*envkit"),
]


@pytest.fixture(autouse=True, scope="module")
def environments() -> None:
    prepare()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with benches(tmp_path) as make:
        yield make


def _sometimes_right() -> ScriptedEngine:
    """Return an engine that is right in turns whose draw, by episode, says so."""
    oracle = CanaryEnv(**CANARY).oracle()

    def reply(context: Any) -> str:
        is_right = next(draws)
        return oracle(context) if is_right else "-"

    draws = cycle([True, False, False, True, True])
    return ScriptedEngine(vision_codec(), reply)


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
        engine=ScriptedEngine(vision_codec(), lambda context: next(words)),
        config=RolloutConfig.from_mapping({"agent": "fakes.own_agents:praising"}),
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
