"""Advantages by turn in SkyRL's real trainer, whatever rows an episode became."""

from collections.abc import Callable
from typing import Any

import pytest
from fakes.skyrl_run import Run

from envkit.errors import ConfigurationError
from envkit_skyrl import EnvkitTrainConfig
from envkit_skyrl.experiment import prepare_config

MakeRun = Callable[..., Run]
WORDS = (("good", "bad", "good"), ("bad", "good", "good"), ("good", "boom", "boom"))


def says(ask: Any) -> str:
    """Two episodes of three turns, and one that fails in its second."""
    return WORDS[ask.member][ask.turn]


def by_turn(batch: Any, member_rows: dict[str, list[int]]) -> list[list[float]]:
    """Return each episode's advantages, one for each reply."""
    found: list[list[float]] = []
    for rows in member_rows.values():
        turns: list[float] = []
        for row in rows:
            before = 0.0
            pairs = zip(batch["loss_mask"][row], batch["advantages"][row], strict=True)
            for mask, advantage in pairs:
                if mask and not before:
                    turns.append(round(float(advantage), 4))
                before = float(mask)
        found.append(turns)
    return found


@pytest.mark.parametrize(
    ("step_wise", "merge", "by_trainer"),
    [(False, False, False), (True, False, False), (True, True, False), (True, False, True)],
    ids=["whole", "steps", "merged by envkit", "merged by SkyRL"],
)
@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        (0.0, [[0.125, -0.125, 0.0], [-0.125, 0.125, 0.0], []]),
        (1.0, [[0.0, -0.125, 0.0], [0.0, 0.125, 0.0], []]),
    ],
)
async def test_a_turn_is_compared_with_the_same_turn_of_its_group(
    run: MakeRun,
    step_wise: bool,
    merge: bool,
    by_trainer: bool,
    discount: float,
    expected: list[list[float]],
) -> None:
    envkit = {"turn_discount": discount, "merge": merge}
    made = run(policy=says, samples=3, step_wise=step_wise, envkit=envkit)
    made.cfg.trainer.algorithm.grpo_norm_by_std = False
    output = await made.generate()
    batch = await made.train(output, merge=by_trainer)
    members: dict[str, list[int]] = {}
    row, lasts = 0, batch.metadata.get("is_last_step") or [True] * 3
    for number, is_last in enumerate(lasts):
        members.setdefault(str(row), []).append(number)
        row += is_last
    assert by_turn(batch, members) == expected


def test_another_estimator_is_refused_with_the_setting() -> None:
    cfg: Any = EnvkitTrainConfig.from_cli_overrides(
        ["envkit.turn_discount=0.9", "trainer.algorithm.advantage_estimator=rloo"]
    )
    with pytest.raises(ConfigurationError, match="advantage_estimator=grpo, got 'rloo'"):
        prepare_config(cfg)
