"""Recordings and random histories through slime's and miles' real Sample and conversion."""

from typing import Any

import pytest
from fakes.conformance_checks import check_projection
from fakes.gradients import LossCase, Reduction
from fakes.gradients.of_miles import miles_arguments
from fakes.gradients.of_slime import arguments, rollout_manager, written
from fakes.random_groups import (
    all_groups,
    check_advantages,
    check_owners,
    own_tokens,
    random_group,
    with_silent_leaves,
    without_images,
)

from envkit.trajectory import Trajectory
from envkit_conformance import Shape
from envkit_miles.conformance import PROJECTIONS as MILES
from envkit_miles.generate import MilesForm
from envkit_slime.conformance import NO_STATE, PROJECTIONS
from envkit_slime.generate import SlimeForm
from envkit_slime.rewards import post_process_rewards

pytestmark = pytest.mark.slime


@pytest.mark.usefixtures("needs_slime")
@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_slime_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)


@pytest.mark.usefixtures("needs_miles")
@pytest.mark.parametrize("name", [one.name for one in MILES])
def test_miles_has_every_recording_token_for_token(name: str) -> None:
    check_projection(MILES, name)


CASE = LossCase(reduction=Reduction.EPISODE_MEAN)


def slime_data(group: tuple[Trajectory, ...], shape: Shape) -> dict[str, Any]:
    from slime.utils.types import Sample

    args = arguments(len(group), CASE)
    samples = written(SlimeForm(args, state=NO_STATE), Sample, group, shape)
    return rollout_manager(args, post_process_rewards)._convert_samples_to_train_data(samples)


def miles_data(group: tuple[Trajectory, ...], shape: Shape) -> dict[str, Any]:
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data
    from miles.utils.types import Sample

    args = miles_arguments(len(group), CASE)
    samples = written(MilesForm(NO_STATE, args), Sample, without_images(group), shape)
    return convert_samples_to_train_data(args, samples, {}, None, post_process_rewards)


def check(group: tuple[Trajectory, ...], data: dict[str, Any]) -> None:
    """A sampled token is trained once; episodes, not rows, have a weight and a reward."""
    numbers, masks = data["rollout_ids"], data["loss_masks"]
    ids = [tokens[-len(mask) :] for tokens, mask in zip(data["tokens"], masks, strict=True)]
    check_owners(group, list(zip(numbers, ids, masks, strict=True)))
    sums = [len(own_tokens(group[number])) for number in numbers]
    assert data["rollout_mask_sums"] == sums
    assert set(numbers) == set(range(len(group)))
    faulted = [number for number, one in enumerate(group) if one.is_faulted]
    assert all(numbers.count(number) == 1 for number in faulted)


@pytest.mark.usefixtures("needs_slime")
@pytest.mark.parametrize("shape", [Shape.MERGED, Shape.STEPS])
def test_slime_random_histories_are_trained_once(shape: Shape) -> None:
    for _, group in all_groups():
        data = slime_data(group, shape)
        check(group, data)
        check_advantages(group, zip(data["rollout_ids"], data["rewards"], strict=True))


@pytest.mark.usefixtures("needs_miles_main")
@pytest.mark.parametrize("shape", [Shape.MERGED, Shape.STEPS])
def test_miles_random_histories_are_trained_once(shape: Shape) -> None:
    for _, group in all_groups():
        data = miles_data(group, shape)
        check(group, data)
        check_advantages(group, zip(data["rollout_ids"], data["rewards"], strict=True))


@pytest.mark.usefixtures("needs_slime")
def test_slime_leaves_without_own_tokens_train_nothing() -> None:
    group = with_silent_leaves(random_group(1))
    check(group, slime_data(group, Shape.STEPS))
