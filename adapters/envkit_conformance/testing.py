"""A test class for adapter authors to subclass. It needs pytest only when it runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from envkit.trajectory import RewardPlacement, Trajectory
from envkit_conformance.delivered import Content, DeliveredRow, Projection, Shape
from envkit_conformance.recordings import Recording, load_recordings, shipped_recordings
from envkit_conformance.suite import Verdict, check

if TYPE_CHECKING:
    import pytest

OPTION = "--envkit-recordings"
"""pytest option that selects another folder of recordings."""


class AdapterConformance:
    """One test per recording. Subclass it as `Test...` for pytest to collect it.

    Either set `projection`, or set the other attributes and write `deliver`::

        class TestMyTrainer(AdapterConformance):
            shape = Shape.WHOLE
            cannot_carry = frozenset({Content.IMAGES})

            def deliver(self, trajectory, *, filler_id):
                sample = my_adapter.to_sample(trajectory, filler_id)
                return [DeliveredRow(prompt_ids=sample.prompt, ...)]
    """

    projection: ClassVar[Projection | None] = None
    """What to check; None uses this class's own `deliver` and the attributes below."""
    shape: ClassVar[Shape] = Shape.WHOLE
    cannot_carry: ClassVar[frozenset[Content]] = frozenset()
    reward_placement: ClassVar[RewardPlacement] = RewardPlacement.LAST
    rewards_every_row: ClassVar[bool] = False
    omits_unscored: ClassVar[bool] = False

    def deliver(self, trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
        """Pass a trajectory to the trainer and read back what arrived; see `Deliver`."""
        raise NotImplementedError(
            f"{type(self).__name__} must set `projection` or write `deliver(trajectory, *, "
            "filler_id)`"
        )

    def test_recording_arrives_token_for_token(self, envkit_recording: Recording) -> None:
        """Fail with the first difference, in words."""
        outcome = check(self._subject(), envkit_recording)
        if outcome.verdict not in (Verdict.PASS, Verdict.REFUSED):
            raise AssertionError(f"{outcome}\n{envkit_recording.about}")

    def pytest_generate_tests(self, metafunc: "pytest.Metafunc") -> None:
        """Create one test per recording; pytest calls this hook by name."""
        parametrize(metafunc)

    def _subject(self) -> Projection:
        if self.projection is not None:
            return self.projection
        return Projection(
            name=type(self).__name__,
            shape=self.shape,
            deliver=self.deliver,
            cannot_carry=self.cannot_carry,
            reward_placement=self.reward_placement,
            rewards_every_row=self.rewards_every_row,
            omits_unscored=self.omits_unscored,
        )


def parametrize(metafunc: "pytest.Metafunc") -> None:
    """Parametrize a test that requests `envkit_recording` over the recordings."""
    if "envkit_recording" in metafunc.fixturenames:
        folder: str | None = metafunc.config.getoption(OPTION, default=None)
        found = shipped_recordings() if folder is None else load_recordings(folder)
        metafunc.parametrize("envkit_recording", found, ids=[one.name for one in found])
