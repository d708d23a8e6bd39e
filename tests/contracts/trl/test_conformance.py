"""Every recording through TRL's columns and rows, token for token."""

import pytest

from envkit.conformance import Verdict, run_suite, shipped_recordings
from envkit_trl.conformance import PROJECTIONS


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_trl_has_every_recording_token_for_token(name: str) -> None:
    projection = next(one for one in PROJECTIONS if one.name == name)
    recordings = shipped_recordings()
    outcomes = run_suite([projection], recordings)
    wrong = [one for one in outcomes if one.verdict in (Verdict.FAIL, Verdict.NOT_INSTALLED)]
    assert not wrong, "\n".join(map(str, wrong))
    passed = [one for one in outcomes if one.verdict is Verdict.PASS]
    beyond = [entry for entry in recordings if entry.contents & projection.cannot_carry]
    assert len(passed) == len(recordings) - len(beyond) > 0
