"""Every recording through TRL's columns and rows, token for token."""

import pytest
from fakes.conformance_checks import check_projection

from envkit_trl.conformance import PROJECTIONS


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_trl_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)
