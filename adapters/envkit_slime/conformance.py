"""slime's samples for envkit's conformance suite: written by the adapter, read back from slime."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

from envkit.metrics import EpisodeFacts
from envkit.trajectory import Row, Trajectory
from envkit_conformance import (
    Content,
    DeliveredRow,
    Projection,
    Shape,
    expected_rows,
    shipped_recordings,
)
from envkit_slime.form import Form
from envkit_slime.generate import SlimeForm
from envkit_slime.sample import FACTS_KEY, Sample
from envkit_slime.upstream import require
from envkit_slime.writer import clear, write_row


class NoText:
    """A stub tokenizer: recordings have none, and text is not compared."""

    eos_token_id = shipped_recordings()[0].filler_id

    def decode(self, ids: Sequence[int], **_: object) -> str:
        """Return nothing."""
        del ids
        return ""


NO_STATE: Final[Any] = SimpleNamespace(tokenizer=NoText())
"""Writing a sample uses nothing else of a trainer's state."""


def delivered(form: Form, sample: Sample, trajectory: Trajectory, row: Row) -> DeliveredRow:
    """Write a row to a sample as a rollout does, and read it back.

    Args:
        form: slime's or miles'.
        sample: A new one of the trainer's own class.
        trajectory: The row's trajectory.
        row: One of its projections.
    """
    clear(sample)
    sample.metadata[FACTS_KEY] = EpisodeFacts.of(trajectory).to_json()
    write_row(form, sample, trajectory, row)
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


def projections(name: str, make: Callable[[], tuple[Form, Sample]]) -> tuple[Projection, ...]:
    """Return projections to one sample per trajectory, and for the two `fan_out` modes.

    Args:
        name: The trainer's, and of the first projection.
        make: Returns the trainer's form, and a new sample of its own class.
    """

    def deliverer(shape: Shape) -> Any:  # noqa: ANN401  # a Deliver
        def deliver(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
            rows = expected_rows(trajectory, shape, filler_id=filler_id)
            return [delivered(*make(), trajectory, row) for row in rows]

        return deliver

    fanned_out = {"sequences": Shape.MERGED, "turns": Shape.STEPS}
    return (
        Projection(
            name=name,
            shape=Shape.WHOLE,
            deliver=deliverer(Shape.WHOLE),
            cannot_carry=frozenset({Content.SEQUENCES}),
        ),
        *(
            Projection(
                name=f"{name}-{suffix}",
                shape=shape,
                deliver=deliverer(shape),
                rewards_every_row=True,
            )
            for suffix, shape in fanned_out.items()
        ),
    )


def _make() -> tuple[Form, Sample]:
    # Attributes that slime reads while appending tokens; all others are optional.
    args = Namespace(
        sglang_speculative_algorithm=None,
        use_rollout_routing_replay=False,
        rollout_top_p=1.0,
        reward_key=None,
        eval_reward_key=None,
    )
    sample_class: Any = require("slime.utils.types").Sample
    return SlimeForm(args, state=NO_STATE), sample_class(index=0)


PROJECTIONS: Final = projections("slime", _make)
