"""What a failed episode does to its group in slime and in miles, by their own conversion."""

from collections.abc import Callable
from typing import Any

import pytest
from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes.gradients import LossCase, Reduction
from fakes.gradients.of_miles import miles_arguments
from fakes.gradients.of_slime import arguments, rollout_manager, written

from envkit_conformance import Shape
from envkit_miles.generate import MilesForm
from envkit_slime.conformance import NO_STATE
from envkit_slime.generate import SlimeForm
from envkit_slime.rewards import post_process_rewards

pytestmark = [pytest.mark.slime]

Batch = Callable[[str, LossCase, Shape], tuple[list[Any], dict[str, Any]]]


def delivered(samples: list[Any]) -> list[Any]:
    """Leave out what does not reach a batch: an aborted sample goes back with its group."""
    return [one for one in samples if one.status is not one.Status.ABORTED]


def slime_batch(name: str, case: LossCase, shape: Shape) -> tuple[list[Any], dict[str, Any]]:
    from slime.utils.types import Sample

    args = arguments(4, case)
    samples = delivered(
        written(SlimeForm(args, state=NO_STATE), Sample, failure_group(name), shape)
    )
    manager = rollout_manager(args, post_process_rewards)
    return samples, manager._convert_samples_to_train_data(samples)


def miles_batch(name: str, case: LossCase, shape: Shape) -> tuple[list[Any], dict[str, Any]]:
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data
    from miles.utils.types import Sample

    args = miles_arguments(4, case)
    samples = delivered(written(MilesForm(NO_STATE, args), Sample, failure_group(name), shape))
    return samples, convert_samples_to_train_data(args, samples, {}, None, post_process_rewards)


def effect_of(batch: Batch, name: str, shape: Shape) -> Effect:
    found: dict[bool, tuple[float, ...]] = {}
    rows = tokens = 0
    for is_scaled in (False, True):
        case = LossCase(reduction=Reduction.EPISODE_MEAN, is_scaled=is_scaled)
        samples, data = batch(name, case, shape)
        indices = [sample.index for sample in samples]
        failed = [n for n, index in enumerate(indices) if index == 3]
        rows, tokens = len(failed), sum(sum(data["loss_masks"][n]) for n in failed)
        found[is_scaled] = tuple(data["rewards"][indices.index(member)] for member in range(3))
    return Effect(rows=rows, trained_tokens=tokens, centred=found[False], scaled=found[True])


@pytest.mark.usefixtures("needs_slime")
def test_slime_failed_episodes_have_the_documented_effect() -> None:
    check_effects("slime", {name: effect_of(slime_batch, name, Shape.WHOLE) for name in FAILURES})


@pytest.mark.usefixtures("needs_miles_main")
def test_miles_failed_episodes_have_the_documented_effect() -> None:
    check_effects("miles", {name: effect_of(miles_batch, name, Shape.WHOLE) for name in FAILURES})


@pytest.mark.usefixtures("needs_slime")
@pytest.mark.parametrize("name", [name for name in FAILURES if "no failure" not in name])
def test_slime_fan_out_changes_nothing_about_a_failure(name: str) -> None:
    whole, fanned = (effect_of(slime_batch, name, one) for one in (Shape.WHOLE, Shape.STEPS))
    assert fanned == whole
