"""A test class for adapter authors to subclass. It needs pytest only when it runs."""

from typing import TYPE_CHECKING, ClassVar

from envkit_conformance.delivered import Projection
from envkit_conformance.recordings import Recording, load_recordings, shipped_recordings
from envkit_conformance.suite import ConformanceResult, check

if TYPE_CHECKING:
    import pytest

OPTION = "--envkit-recordings"
"""pytest option that selects another folder of recordings."""


class AdapterConformance:
    """One test per recording. Subclass it as `Test...` for pytest to collect it.

    The projection is the one that an entry point may name as well::

        def deliver(trajectory, *, filler_id):
            sample = my_adapter.to_sample(trajectory, filler_id)
            return [DeliveredRow(prompt_ids=sample.prompt, ...)]

        class TestMyTrainer(AdapterConformance):
            projection = Projection(name="mine", shape=Shape.WHOLE, deliver=deliver)
    """

    projection: ClassVar[Projection]
    """What to check."""

    def test_recording_arrives_token_for_token(self, envkit_recording: Recording) -> None:
        """Fail with the first difference, in words."""
        outcome = check(self.projection, envkit_recording)
        if outcome.verdict not in (ConformanceResult.PASS, ConformanceResult.REFUSED):
            raise AssertionError(f"{outcome}\n{envkit_recording.about}")

    def pytest_generate_tests(self, metafunc: "pytest.Metafunc") -> None:
        """Create one test per recording; pytest calls this hook by name."""
        parametrize(metafunc)


def parametrize(metafunc: "pytest.Metafunc") -> None:
    """Parametrize a test that requests `envkit_recording` over the recordings."""
    if "envkit_recording" in metafunc.fixturenames:
        folder: str | None = metafunc.config.getoption(OPTION, default=None)
        found = shipped_recordings() if folder is None else load_recordings(folder)
        metafunc.parametrize("envkit_recording", found, ids=[one.name for one in found])
