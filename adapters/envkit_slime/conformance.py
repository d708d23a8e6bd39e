"""slime's samples for envkit's conformance suite: written by the adapter, read back from slime."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final

from envkit.conformance import Content, DeliveredRow, Projection, Shape, expected_rows
from envkit.trajectory import Row, Trajectory
from envkit_slime.generate import SlimeForm
from envkit_slime.rollout import finish
from envkit_slime.sample import SUMMARY_KEY, Sample
from envkit_slime.summary import summarise
from envkit_slime.upstream import require
from envkit_slime.writer import SampleForm, clear, write_row


class _NoText:
    """Stands in for the tokenizer: a recording comes without the model, and text is no token."""

    def decode(self, ids: Sequence[int], **_: object) -> str:
        """Return nothing."""
        del ids
        return ""


def delivered(
    form: SampleForm, args: Namespace, sample: Sample, trajectory: Trajectory, row: Row
) -> DeliveredRow:
    """Write a row into a sample as a rollout does, and read the sample back.

    Args:
        form: slime's or miles'.
        args: The trainer's arguments.
        sample: A new one of the trainer's own class.
        trajectory: What the row is of.
        row: One of its projections.
    """
    clear(sample)
    sample.metadata[SUMMARY_KEY] = summarise(trajectory)
    write_row(form, args, sample, trajectory, row, tokenizer=_NoText())
    finish(args, sample, trajectory)
    start = len(sample.tokens) - sample.response_length
    return DeliveredRow(
        prompt_ids=sample.tokens[:start],
        response_ids=sample.tokens[start:],
        loss_mask=sample.loss_mask or [],
        logprobs=sample.rollout_log_probs,
        reward=sample.reward,
        tensors={
            key: value.numpy() for key, value in (sample.multimodal_train_inputs or {}).items()
        },
        is_last=row.is_last,
        is_unscorable=sample.remove_sample,
    )


def _arguments() -> Namespace:
    """Return what slime reads while it appends tokens; every other attribute is optional."""
    return Namespace(
        sglang_speculative_algorithm=None,
        use_rollout_routing_replay=False,
        rollout_top_p=1.0,
        reward_key=None,
        eval_reward_key=None,
    )


def _deliver(shape: Shape) -> Any:  # noqa: ANN401  # a Deliver
    def deliver(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
        sample_class: Any = require("slime.utils.types").Sample
        args = _arguments()
        form = SlimeForm(args)
        rows = expected_rows(trajectory, shape, filler_id=filler_id)
        return [delivered(form, args, sample_class(index=0), trajectory, row) for row in rows]

    return deliver


PROJECTIONS: Final = (
    Projection(
        name="slime",
        shape=Shape.WHOLE,
        deliver=_deliver(Shape.WHOLE),
        cannot_carry=frozenset({Content.SEQUENCES}),
    ),
    Projection(
        name="slime-sequences",
        shape=Shape.MERGED,
        deliver=_deliver(Shape.MERGED),
        rewards_every_row=True,
    ),
    Projection(
        name="slime-turns",
        shape=Shape.STEPS,
        deliver=_deliver(Shape.STEPS),
        rewards_every_row=True,
    ),
)
"""One sample for a trajectory, and the two ways of `fan_out`."""
