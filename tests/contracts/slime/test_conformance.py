"""Every recording through slime's real Sample, token for token."""

import pytest

from envkit.conformance import Verdict, run_suite, shipped_recordings
from envkit_slime.conformance import PROJECTIONS

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_slime_has_every_recording_token_for_token(name: str) -> None:
    projection = next(one for one in PROJECTIONS if one.name == name)
    recordings = shipped_recordings()
    outcomes = run_suite([projection], recordings)
    wrong = [one for one in outcomes if one.verdict in (Verdict.FAIL, Verdict.NOT_INSTALLED)]
    assert not wrong, "\n".join(map(str, wrong))
    refused = [one.recording for one in outcomes if one.verdict is Verdict.REFUSED]
    beyond = [one.name for one in recordings if one.contents & projection.cannot_carry]
    assert refused == beyond
    assert len(refused) <= 1
