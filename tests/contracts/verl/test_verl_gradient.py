"""verl's own advantages and loss on the adapter's rows, against the plain formula."""

import pytest
from fakes.gradients import Compared, Comparison, Reduction, Verdict
from fakes.gradients.episodes import episode_sets
from fakes.gradients.of_verl import GRADIENTS


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
