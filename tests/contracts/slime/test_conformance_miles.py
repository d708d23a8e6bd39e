"""Every recording through miles' real Sample, token for token."""

import pytest
from fakes.conformance_checks import check_projection

from envkit_miles.conformance import PROJECTIONS

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_miles")]


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_miles_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)
