"""Failed episodes and gradients of slime and miles, against the plain formula."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes.gradients import Compared, GradientPath, LossCase, Reduction, Verdict
from fakes.gradients.cases import CASES
from fakes.gradients.episodes import episode_sets
from fakes.gradients.of_miles import GRADIENTS as MILES
from fakes.gradients.of_miles import backward as miles_backward
from fakes.gradients.of_miles import miles_arguments
from fakes.gradients.of_slime import GRADIENTS as SLIME
from fakes.gradients.of_slime import arguments, rollout_manager, written
from fakes.gradients.suite import measure, plain_gradient, policy_for

from envkit_conformance import Shape
from envkit_miles.generate import MilesForm
from envkit_slime.conformance import NO_STATE
from envkit_slime.generate import SlimeForm
from envkit_slime.rewards import post_process_rewards

pytestmark = pytest.mark.slime

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


def check(compared: Compared, path: GradientPath, refused: set[str]) -> None:
    """Every case is equal or differs as predicted; refused are the named shapes and sets alone."""
    found: set[str] = set()
    for one in compared([path]):
        assert one.verdict is not Verdict.FAIL, str(one)
        if one.verdict is Verdict.REFUSED:
            found.add(f"{one.shape.value}, {one.episodes}")
        if one.verdict is Verdict.EXPLAINED:
            assert one.case.reduction is Reduction.TOKEN_MEAN, str(one)
    assert found == refused


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("needs_slime")
def test_slime_gradients_are_those_of_the_plain_formula(compared: Compared) -> None:
    check(compared, *SLIME, refused=set())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("needs_miles_main")
def test_miles_gradients_are_those_of_the_plain_formula(compared: Compared) -> None:
    dropped = {f"{shape}, dropped screenshot" for shape in ("merged", "steps")}
    check(compared, *MILES, refused={"steps, images", *dropped})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("needs_miles_main")
def test_miles_gradients_by_its_fused_cross_entropy_are_rounded_to_bfloat16() -> None:
    (episodes,) = (one for one in episode_sets() if one.name == "fault")
    case = LossCase(reduction=Reduction.EPISODE_MEAN)
    policy = policy_for(episodes)
    run = partial(miles_backward, policy, episodes.trajectories, Shape.WHOLE, case)
    run(is_exact=False)
    cosine, ratio = measure(policy.take_gradient(), plain_gradient("fault", case))
    assert 1e-7 < 1 - cosine < 1e-5
    assert ratio == pytest.approx(1, abs=2e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("needs_slime")
def test_slime_two_ranks_have_the_gradient_of_one(tmp_path: Path) -> None:
    check_two_ranks("slime", tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("needs_slime", "needs_miles_main")
def test_miles_two_ranks_have_the_gradient_of_one(tmp_path: Path) -> None:
    check_two_ranks("miles", tmp_path)


def check_two_ranks(trainer: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fakes.slime_ranks", trainer]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)[-3000:]
    (path,) = SLIME
    with np.load(tmp_path / "0.npz") as one, np.load(tmp_path / "1.npz") as other:
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
            episodes, case_name = name.split("|")
            (case,) = (case for case in CASES if case.name == case_name)
            cosine, ratio = measure(one[name], plain_gradient(episodes, case))
            (chosen,) = (known for known in episode_sets() if known.name == episodes)
            known = path.explain(Shape.WHOLE, case, chosen.trajectories)
            expected = 1.0 if known is None or known.norm_ratio is None else known.norm_ratio
            assert cosine >= 1 - 1e-6, name
            assert ratio == pytest.approx(expected, rel=1e-4), name
        assert len(one) == 9
