"""What a failed episode becomes in TRL's real trainers."""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes.gradients import LossCase, Policy, Reduction
from fakes.gradients.of_trl import _by_function, _small
from fakes.trl_run import grpo_arguments

from envkit.trajectory import Trajectory
from envkit_trl.samples import RowSettings, group_samples


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
