"""Describe the first difference between a trainer's rows and the core's."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envkit.images import Image
from envkit.text import counted
from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory import RewardPlacement, Row
from envkit_conformance.delivered import DeliveredRow


def first_difference(
    expected: Sequence[Row],
    delivered: Sequence[DeliveredRow],
    *,
    placement: RewardPlacement = RewardPlacement.LAST,
) -> str | None:
    """Return the first difference between delivered and expected rows, or None.

    Log-probabilities and rewards may be rounded to single precision; nothing else may differ.
    `unscored_difference` compares a trajectory without a reward.

    Args:
        expected: The core's rows.
        delivered: The trainer's rows.
        placement: Where the trainer expects per-token rewards.
    """
    if expected[-1].reward is None:
        return _unscored_difference(expected, delivered)
    for number, (row, got) in enumerate(zip(expected, delivered, strict=False)):
        difference = _row_difference(row, got, placement)
        if difference is not None:
            place = "" if len(expected) == 1 else f"row {number} of {len(expected)}: "
            return place + difference + _other_row(expected, got, number)
    if len(expected) != len(delivered):
        return f"{counted(len(expected), 'row')} expected, got {len(delivered)}"
    return None


def _row_difference(row: Row, got: DeliveredRow, placement: RewardPlacement) -> str | None:
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: _ids("prompt", row.prompt_ids, got.prompt_ids),
        lambda: _ids("response", row.response_ids, got.response_ids),
        lambda: _mask(row, got),
        lambda: _logprobs(row, got),
        lambda: _marks(row, got),
        lambda: _rewards(row, got, placement),
        lambda: _images(row, got),
    )
    return next((text for check in checks if (text := check()) is not None), None)


def _ids(name: str, expected: Sequence[int], got: Sequence[int]) -> str | None:
    place = _first(expected, got)
    if place is None:
        return None
    missing = len(expected) - len(got)
    if place == len(got):
        return f"{name} ids end after {len(got)} of {counted(len(expected), 'token')}"
    if place == len(expected):
        behind = " (an observation after the last reply?)" if name == "response" else ""
        return (
            f"{name} ids continue after the {counted(place, 'token')} expected, got {-missing} more"
            + (behind)
        )
    text = f"{name} ids differ at token {place}: expected {expected[place]}, got {got[place]}"
    if missing > 0 and list(expected[place + missing :]) == list(got[place:]):
        return f"{text}; {counted(missing, 'token')} missing there, the rest is equal"
    if missing < 0 and list(expected[place:]) == list(got[place - missing :]):
        return f"{text}; {counted(-missing, 'token')} too many there, the rest is equal"
    return text


def _mask(row: Row, got: DeliveredRow) -> str | None:
    place = _first(row.loss_mask, got.loss_mask)
    if place is None:
        return None
    if (length := _length("mask", row.response_ids, got.loss_mask)) is not None:
        return length
    wrong = got.loss_mask[place]
    text = f"mask differs at response token {place}: expected {row.loss_mask[place]}, got {wrong}"
    expected, mask = list(row.loss_mask), [int(value) for value in got.loss_mask]
    if mask[1:] == expected[:-1]:
        return f"{text}; the mask is shifted right by 1"
    if mask[:-1] == expected[1:]:
        return f"{text}; the mask is shifted left by 1"
    return text


def _logprobs(row: Row, got: DeliveredRow) -> str | None:
    if got.logprobs is None:
        return "no log-probabilities were delivered"
    if (length := _length("log-probabilities", row.response_ids, got.logprobs)) is not None:
        return length
    for place, (value, other) in enumerate(zip(row.logprobs, got.logprobs, strict=True)):
        if not _same(value, other):
            lost = " (lost)" if other == 0.0 else ""
            return f"log-probability of response token {place}: expected {value}, got {other}{lost}"
    return None


def _marks(row: Row, got: DeliveredRow) -> str | None:
    if got.is_unscorable:
        return f"the row is marked as unscorable, but has the reward {row.reward}"
    return _last(got, is_last=row.is_last)


def _rewards(row: Row, got: DeliveredRow, placement: RewardPlacement) -> str | None:
    if got.reward is None and got.token_rewards is None:
        return f"no reward was delivered, expected {row.reward}"
    if got.reward is not None and not _same(row.reward or 0.0, got.reward):
        return f"reward differs: expected {row.reward}, got {got.reward}"
    if got.token_rewards is None:
        return None
    if (length := _length("token rewards", row.response_ids, got.token_rewards)) is not None:
        return length
    expected = row.token_rewards(placement)
    for place, (value, other) in enumerate(zip(expected, got.token_rewards, strict=True)):
        if not _same(value, other):
            return f"reward of response token {place}: expected {value}, got {other}"
    return None


def _length(name: str, ids: Sequence[int], column: Sequence[object]) -> str | None:
    if len(column) == len(ids):
        return None
    expected = counted(len(ids), "response id")
    return f"{name} must have one entry for each of {expected}, got {len(column)}"


def _last(got: DeliveredRow, *, is_last: bool) -> str | None:
    if bool(got.is_last) == is_last:
        return None
    word = "is" if got.is_last else "is not"
    return f"the row {word} marked as the last one, which is wrong"


def _other_row(expected: Sequence[Row], got: DeliveredRow, number: int) -> str:
    """Return a hint if the row is another row of the same trajectory."""
    ids = tuple(got.prompt_ids), tuple(got.response_ids)
    if ids == (expected[number].prompt_ids, expected[number].response_ids):
        return ""
    for other, row in enumerate(expected):
        if ids == (row.prompt_ids, row.response_ids):
            return f"; these are the ids of row {other}: the order of the rows is wrong"
    return ""


def _first(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Return the first index where two columns differ."""
    pairs: Iterator[tuple[int | None, int | None]] = zip_longest(expected, got)
    for place, (one, other) in enumerate(pairs):
        if one is None or other is None or int(one) != int(other):
            return place
    return None


def _same(expected: float, got: float) -> bool:
    """Return whether two numbers are equal once both are rounded to single precision."""
    if not (math.isfinite(expected) and math.isfinite(got)):
        return expected == got
    return bool(np.float32(expected) == np.float32(got))


def _unscored_difference(expected: Sequence[Row], delivered: Sequence[DeliveredRow]) -> str | None:
    """Return what would make a trainer learn from a failure or break on it, or None.

    Trainers differ for a trajectory without a reward: some keep the tokens with mask 0, others use
    the smallest valid row. Either way nothing is trained, so the ids may be anything; only the mask
    and reward matter.
    """
    if not delivered:
        return "no row was delivered for a trajectory without a reward; a batch needs one, masked"
    for number, got in enumerate(delivered):
        difference = _row(expected, got, is_last=number == len(delivered) - 1)
        if difference is not None:
            place = "" if len(delivered) == 1 else f"row {number} of {len(delivered)}: "
            return place + difference
    return None


def _row(expected: Sequence[Row], got: DeliveredRow, *, is_last: bool) -> str | None:
    if not (len(got.response_ids) and len(got.prompt_ids)):
        return "a row without a reward must still have prompt and response ids, got none"
    for name, column in (
        ("mask", got.loss_mask),
        ("log-probabilities", got.logprobs),
        ("token rewards", got.token_rewards),
    ):
        if column is not None and (length := _length(name, got.response_ids, column)) is not None:
            return length
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
    return _last(got, is_last=is_last) or _images(_same_ids(expected, got), got)


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


def _images(row: Row, got: DeliveredRow) -> str | None:
    """Return the first difference of a row's images, or None.

    Tensors are compared value by value if the recording has them. Without the processor's outputs,
    only the images themselves are compared.
    """
    tensors = {key: array for key, array in got.tensors.items() if np.size(array)}
    if not row.images:
        if tensors or got.images:
            what = f"tensors {sorted(tensors)}" if tensors else f"{len(got.images or ())} images"
            return f"a row without images was delivered with {what}"
        return None
    if not tensors and not got.images and (row.features or got.images is not None):
        return f"no image was delivered, expected {len(row.images)}"
    if got.images is not None:
        difference = _pictures(row.images, got.images)
        if difference is not None:
            return difference
    return _tensors(row, tensors) if tensors and row.features else None


def _pictures(expected: Sequence[Image], got: Sequence[Image]) -> str | None:
    for number, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one == other:
            continue
        text = f"image {number} is a different image"
        if other in expected:
            return f"{text}: image {list(expected).index(other)} of the row is there instead"
        return f"{text} than the recorded one"
    if len(expected) != len(got):
        return f"{len(got)} images were delivered, expected {len(expected)}"
    return None


def _tensors(row: Row, got: dict[str, NDArray[Any]]) -> str | None:
    expected = row.tensors
    if set(expected) != set(got):
        return f"tensors {sorted(got)} were delivered, expected {sorted(expected)}"
    for key, array in expected.items():
        difference = _tensor(key, array, np.asarray(got[key]), row.features)
        if difference is not None:
            return difference
    return None


def _tensor(
    key: str, expected: NDArray[Any], got: NDArray[Any], features: Sequence[ImageFeatures]
) -> str | None:
    if expected.shape != got.shape:
        text = f"tensor {key} has shape {got.shape}, expected {expected.shape}"
        return text + _count_hint(got, [feature.tensors[key] for feature in features])
    if _kind(expected) != _kind(got):
        return f"tensor {key} holds {got.dtype}, expected {expected.dtype}"
    if np.array_equal(expected, got):
        return None
    start = 0
    # name the image if images are laid out along this axis
    for number, feature in enumerate(features):
        part = feature.tensors[key]
        found = got[start : start + len(part)]
        if part.shape == found.shape and not np.array_equal(part, found):
            return f"tensor {key} differs in image {number}{_swap_hint(found, key, features)}"
        start += len(part)
    return f"tensor {key} differs"


def _count_hint(got: NDArray[Any], parts: Sequence[NDArray[Any]]) -> str:
    """Return how many images a tensor of another length holds, if it is a whole number."""
    total = 0
    for number, part in enumerate(parts):
        if total == len(got):
            return f": {number} of {len(parts)} images"
        total += len(part)
    return ""


def _swap_hint(found: NDArray[Any], key: str, features: Sequence[ImageFeatures]) -> str:
    for number, feature in enumerate(features):
        if np.array_equal(feature.tensors[key], found):
            return f": image {number} of the row is there instead"
    return ""


def _kind(array: NDArray[Any]) -> str:
    return "whole" if array.dtype.kind in "iub" else array.dtype.kind
