"""miles' samples for envkit's conformance suite: written by the adapter, read back from miles."""

from argparse import Namespace
from typing import Any, Final

from envkit_miles.generate import MilesForm
from envkit_slime.conformance import NO_STATE, projections
from envkit_slime.form import Form
from envkit_slime.sample import Sample
from envkit_slime.upstream import require


def _make() -> tuple[Form, Sample]:
    args = Namespace(
        sglang_speculative_algorithm=None,
        use_rollout_routing_replay=False,
        group_rm=False,
        reward_key=None,
        eval_reward_key=None,
    )
    sample_class: Any = require("miles.utils.types").Sample
    return MilesForm(NO_STATE, args), sample_class(index=0)


PROJECTIONS: Final = projections("miles", _make)
