"""miles' samples for envkit's conformance suite: written by the adapter, read back from miles."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any, Final

from envkit.conformance import Content, DeliveredRow, Projection, Shape, expected_rows
from envkit.trajectory import Trajectory
from envkit_miles.generate import MilesForm
from envkit_slime.conformance import delivered
from envkit_slime.upstream import require


def _deliver(shape: Shape) -> Any:  # noqa: ANN401  # a Deliver
    def deliver(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
        sample_class: Any = require("miles.utils.types").Sample
        args = Namespace(
            sglang_speculative_algorithm=None,
            use_rollout_routing_replay=False,
            group_rm=False,
            reward_key=None,
            eval_reward_key=None,
        )
        state: Any = SimpleNamespace()  # writing a sample asks it for nothing
        form = MilesForm(state)
        rows = expected_rows(trajectory, shape, filler_id=filler_id)
        return [delivered(form, args, sample_class(index=0), trajectory, row) for row in rows]

    return deliver


PROJECTIONS: Final = (
    Projection(
        name="miles",
        shape=Shape.WHOLE,
        deliver=_deliver(Shape.WHOLE),
        cannot_carry=frozenset({Content.SEQUENCES}),
    ),
    Projection(
        name="miles-sequences",
        shape=Shape.MERGED,
        deliver=_deliver(Shape.MERGED),
        rewards_every_row=True,
    ),
    Projection(
        name="miles-turns",
        shape=Shape.STEPS,
        deliver=_deliver(Shape.STEPS),
        rewards_every_row=True,
    ),
)
"""One sample for a trajectory, and the two ways of `fan_out`."""
