"""Recordings, random histories and failures through verl's own classes, advantages and loss."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes import random_groups
from fakes.conformance_checks import check_projection
from fakes.gradients import Compared, Comparison, LossCase, Policy, Reduction, Verdict
from fakes.gradients.episodes import episode_sets
from fakes.gradients.of_verl import GRADIENTS, TrainingRow, advantages_of, deliver
from fakes.gradients.suite import measure, plain_gradient
from fakes.verl_ranks import CASES, SETS, rank
from torch.multiprocessing.spawn import spawn

from envkit.errors import ConfigurationError
from envkit_verl.conformance import PROJECTIONS


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_verl_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)


CASE = LossCase(reduction=Reduction.TOKEN_MEAN)


def episode_of(line: TrainingRow) -> int:
    """Return the number of a line's episode in its group."""
    return int(line.key.rsplit("_", 2)[1])


@pytest.mark.parametrize("is_scaled", [False, True])
def test_verl_random_histories_are_trained_once(is_scaled: bool) -> None:
    case = LossCase(reduction=Reduction.TOKEN_MEAN, is_scaled=is_scaled)
    for _, group in random_groups.all_groups():
        lines = deliver(group, case, is_v1=True, filler_id=random_groups.FILLER)
        columns = [(one.output.response_ids, one.output.response_mask) for one in lines]
        random_groups.check_owners(
            group, [(episode_of(one), *c) for one, c in zip(lines, columns, strict=True)]
        )
        found = advantages_of(lines, case, is_v1=True)
        random_groups.check_advantages(
            group,
            [
                (episode_of(line), float(value))
                for line, row in zip(lines, found, strict=True)
                for value in row[line.mask.bool()]
            ],
            is_scaled=is_scaled,
        )


def test_verl_leaves_without_own_tokens_train_nothing() -> None:
    group = random_groups.with_silent_leaves(random_groups.random_group(1))
    lines = deliver(group, CASE, is_v1=True, filler_id=random_groups.FILLER)
    rows = [(episode_of(one), one.output.response_ids, one.output.response_mask) for one in lines]
    random_groups.check_owners(group, rows)


def test_verl_v0_refuses_an_episode_of_many_rows() -> None:
    with pytest.raises(ConfigurationError, match="use_v1=true"):
        deliver(random_groups.rewritten_often(4), CASE, is_v1=False, filler_id=random_groups.FILLER)


def test_verl_engine_computes_the_plain_gradient_on_two_ranks(tmp_path: Path) -> None:
    """Advantages, padding, token counts over ranks and the averaged gradient are all verl's own."""
    model: Any = Policy().model
    model.save_pretrained(tmp_path / "model")
    spawn(rank, args=(2, str(tmp_path)), nprocs=2)
    found = np.load(tmp_path / "found.npz")
    assert len(found) == len(SETS) * len(CASES) - 1
    for case in CASES:
        for name in SETS:
            key = f"{name}|{case.name}"
            if key in found:
                cosine, ratio = measure(found[key], plain_gradient(name, case))
                assert (cosine, ratio) == pytest.approx((1.0, 1.0), abs=1e-4), key
                assert cosine > 1 - 1e-6, key


@pytest.fixture(scope="module")
def found(compared: Compared) -> list[Comparison]:
    return compared(GRADIENTS)


def test_verl_gradients_are_equal_or_explained(found: list[Comparison]) -> None:
    assert not [str(one) for one in found if one.verdict is Verdict.FAIL]
    assert {one.verdict for one in found} == {
        Verdict.EQUAL,
        Verdict.EXPLAINED,
        Verdict.REFUSED,
        Verdict.FOUND,
    }


def test_verl_v1_differs_nowhere(found: list[Comparison]) -> None:
    """Only episodes of several rows in a mean over rows are not equal: they are refused."""
    odd = [one for one in found if one.path == "verl-v1" and one.verdict is not Verdict.EQUAL]
    odd = [one for one in odd if one.verdict is not Verdict.FOUND]
    assert {one.verdict for one in odd} == {Verdict.REFUSED}
    assert {one.case.reduction for one in odd} == {Reduction.EPISODE_MEAN}
    several = {one.name for one in episode_sets() if one.needs_rows}
    assert {one.episodes for one in odd} == several
    assert all("token-mean" in one.message for one in odd)


def test_verl_v0_counts_a_faults_row_in_the_deviation(found: list[Comparison]) -> None:
    odd = [one for one in found if one.path == "verl-v0" and one.verdict is Verdict.EXPLAINED]
    assert {one.episodes for one in odd} == {"fault", "two groups", "images", "forks"}
    assert all(one.case.is_scaled for one in odd)
    (fault,) = (one for one in odd if one.episodes == "fault")
    assert fault.norm_ratio == pytest.approx(1.5**0.5, abs=1e-4)
    assert "use_v1=true" in fault.message


def effect(name: str, *, is_v1: bool) -> Effect:
    group = failure_group(name)
    failed: list[TrainingRow] = []
    found: list[tuple[float, ...]] = []
    for is_scaled in (False, True):
        case = LossCase(reduction=Reduction.TOKEN_MEAN, is_scaled=is_scaled)
        filler_id = group[0].segments[0].train_ids[0]
        lines = deliver(group, case, is_v1=is_v1, filler_id=filler_id)
        failed = [line for line in lines if line.key.startswith("g_3_")]
        values = advantages_of(lines, case, is_v1=is_v1)
        found.append(tuple(float(row[0]) for row in values[:3]))
    return Effect(
        rows=len(failed),
        trained_tokens=sum(int(line.mask.sum()) for line in failed),
        centred=found[0],
        scaled=found[1],
    )


@pytest.mark.parametrize("is_v1", [False, True], ids=["v0", "v1"])
def test_verl_failures_have_the_documented_effects(is_v1: bool) -> None:
    effects = {name: effect(name, is_v1=is_v1) for name in FAILURES}
    check_effects(f"verl-{'v1' if is_v1 else 'v0'}", effects)
