"""Every recording through miles' real Sample, token for token."""

import pytest

from envkit.conformance import Verdict, run_suite, shipped_recordings
from envkit_miles.conformance import PROJECTIONS

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_miles")]


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_miles_has_every_recording_token_for_token(name: str) -> None:
    projection = next(one for one in PROJECTIONS if one.name == name)
    outcomes = run_suite([projection], shipped_recordings())
    wrong = [one for one in outcomes if one.verdict in (Verdict.FAIL, Verdict.NOT_INSTALLED)]
    assert not wrong, "\n".join(map(str, wrong))
    assert sum(one.verdict is Verdict.PASS for one in outcomes) >= len(outcomes) - 1
