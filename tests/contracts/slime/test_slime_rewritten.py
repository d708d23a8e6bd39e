"""Episodes of which the chat template rewrote the history, so that they are several rows."""

from dataclasses import replace

import pytest
from fakes.gradients import LossCase, Reduction
from fakes.gradients.of_slime import arguments, written

from envkit.errors import ConfigurationError
from envkit.rollout import RolloutConfig
from envkit.trajectory import StopReason
from envkit_conformance import Shape, shipped_recordings
from envkit_slime.conformance import NO_STATE
from envkit_slime.generate import SlimeForm
from envkit_slime.rollout import deliver
from envkit_slime.settings import Settings

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]

(REWRITTEN,) = (one.trajectory for one in shipped_recordings() if one.name == "thinking_rerender")


def test_slime_a_rewritten_history_names_the_setting_that_takes_it() -> None:
    from slime.utils.types import Sample

    args = arguments(4, LossCase(reduction=Reduction.EPISODE_MEAN))
    with pytest.raises(ConfigurationError, match="fan_out: sequences"):
        written(SlimeForm(args, state=NO_STATE), Sample, [REWRITTEN], Shape.WHOLE)
    assert len(written(SlimeForm(args, state=NO_STATE), Sample, [REWRITTEN], Shape.MERGED)) > 1


def test_slime_an_abort_of_a_rewritten_history_does_not_end_the_rollout() -> None:
    from slime.utils.types import Sample

    args = arguments(4, LossCase(reduction=Reduction.EPISODE_MEAN))
    form = SlimeForm(args, state=NO_STATE)
    settings = Settings(rollout=RolloutConfig())
    aborted = replace(REWRITTEN, stop_reason=StopReason.ABORTED, reward=None)
    sample = Sample(index=0)
    assert deliver(form, sample, [aborted], settings) is sample
    assert sample.status is Sample.Status.ABORTED
    assert sample.reward is None
