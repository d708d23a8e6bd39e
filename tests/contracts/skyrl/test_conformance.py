"""Every recording through SkyRL's real output and validator, token for token."""

import pytest
from fakes.conformance_checks import check_projection

from envkit_skyrl.conformance import PROJECTIONS

pytestmark = pytest.mark.skyrl


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_skyrl_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)
