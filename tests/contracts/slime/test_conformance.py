"""Every recording through slime's real Sample, token for token."""

import pytest
from fakes.conformance_checks import check_projection

from envkit_slime.conformance import PROJECTIONS

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_slime_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)
