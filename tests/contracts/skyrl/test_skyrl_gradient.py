"""SkyRL's gradient, through its real trainer and policy worker, against the plain formula."""

from pathlib import Path

import pytest
from fakes.gradients import Compared, LossCase, Reduction, Verdict
from fakes.gradients.of_skyrl import GRADIENTS
from fakes.gradients.suite import measure, plain_gradient
from fakes.skyrl_ranks import gradients_of_two_ranks

from envkit_conformance import Shape


def test_every_gradient_equals_the_plain_formula(compared: Compared) -> None:
    found = compared(GRADIENTS)
    wrong = [str(one) for one in found if one.verdict not in (Verdict.EQUAL, Verdict.FOUND)]
    assert not wrong
    assert {one.shape for one in found} == set(Shape) - {Shape.CALLS}  # their order changes no loss
    assert {one.case.reduction for one in found} == set(Reduction)


def test_two_data_parallel_ranks_have_the_gradient_of_one(tmp_path: Path) -> None:
    jobs = [
        ("fault", Shape.WHOLE, LossCase(reduction=Reduction.TOKEN_MEAN, is_scaled=True)),
        ("two groups", Shape.STEPS, LossCase(reduction=Reduction.EPISODE_MEAN, is_off_policy=True)),
        ("two groups", Shape.STEPS, LossCase(reduction=Reduction.CONSTANT)),
    ]
    for job, found in zip(jobs, gradients_of_two_ranks(jobs, tmp_path), strict=True):
        cosine, ratio = measure(found, plain_gradient(job[0], job[2]))
        assert cosine == pytest.approx(1, abs=1e-6), job
        assert ratio == pytest.approx(1, abs=1e-4), job
