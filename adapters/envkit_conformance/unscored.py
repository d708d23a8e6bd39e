"""What must hold for a trajectory without a reward in any trainer.

Trainers differ: some keep the tokens with mask 0, others use the smallest valid row. Either way
nothing is trained, so the ids may be anything; only the mask and reward matter.
"""

from collections.abc import Sequence
from dataclasses import replace

from envkit.trajectory import Row
from envkit_conformance.delivered import DeliveredRow
from envkit_conformance.images import image_difference


def unscored_difference(expected: Sequence[Row], delivered: Sequence[DeliveredRow]) -> str | None:
    """Return what would make a trainer learn from a failure or break on it, or None."""
    if not delivered:
        return "no row was delivered for a trajectory without a reward; a batch needs one, masked"
    for number, got in enumerate(delivered):
        difference = _row(expected, got, is_last=number == len(delivered) - 1)
        if difference is not None:
            place = "" if len(delivered) == 1 else f"row {number} of {len(delivered)}: "
            return place + difference
    return None


def _row(expected: Sequence[Row], got: DeliveredRow, *, is_last: bool) -> str | None:
    length = len(got.response_ids)
    if not (length and len(got.prompt_ids)):
        return "a row without a reward must still have prompt and response ids, got none"
    for name, column in (
        ("mask", got.loss_mask),
        ("log-probabilities", got.logprobs),
        ("token rewards", got.token_rewards),
    ):
        if column is not None and len(column) != length:
            return (
                f"{name} must have one entry for each of {length} response ids, got {len(column)}"
            )
    trained = [place for place, value in enumerate(got.loss_mask) if int(value)]
    if trained:
        return (
            f"mask differs at response token {trained[0]}: expected 0, got "
            f"{got.loss_mask[trained[0]]}; a trajectory without a reward trains nothing"
        )
    if got.logprobs is None:
        return "no log-probabilities were delivered"
    if not got.is_unscorable:
        return (
            "a trajectory without a reward is not marked as unscorable; the trainer would use "
            f"{_offered(got)}"
        )
    if bool(got.is_last) != is_last:
        word = "is" if got.is_last else "is not"
        return f"the row {word} marked as the last one, which is wrong"
    return image_difference(_same_ids(expected, got), got)


def _offered(got: DeliveredRow) -> str:
    if got.reward is not None:
        return f"the reward {got.reward}"
    return "its per-token rewards" if got.token_rewards is not None else "a row without a reward"


def _same_ids(expected: Sequence[Row], got: DeliveredRow) -> Row:
    """Return the core's row with the same ids; otherwise one without images."""
    prompt, response = tuple(got.prompt_ids), tuple(got.response_ids)
    for row in expected:
        if row.prompt_ids + row.response_ids[:-1] == prompt + response[:-1]:
            return row
    return replace(expected[-1], images=(), features=())
