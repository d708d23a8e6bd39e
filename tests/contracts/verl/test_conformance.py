"""Every recording through verl's real AgentLoopOutput, token for token."""

import pytest
from fakes.conformance_checks import check_projection

from envkit_verl.conformance import PROJECTIONS

pytestmark = pytest.mark.verl


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_verl_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)
