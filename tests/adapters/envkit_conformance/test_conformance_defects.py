"""Defects planted into a good projection: each is caught, and the message says what it is."""

import re
from dataclasses import replace

import numpy as np
import pytest
from fakes import deliveries as planted

from envkit.trajectory import whole_row
from envkit_conformance import (
    ConformanceResult,
    DeliveredRow,
    Recording,
    Shape,
    check,
    shipped_recordings,
)

WHOLE, STEPS = Shape.WHOLE, Shape.STEPS


def recording(name: str) -> Recording:
    return next(one for one in shipped_recordings() if one.name == name)


def newline_place(name: str) -> int:
    """Return where the newline after the first reply's closing token is, in the response."""
    row = whole_row(recording(name).trajectory, filler_id=0)
    place = row.loss_mask.index(0)
    assert row.response_ids[place] == 198  # "\n" in Qwen's vocabulary
    return place


def reverse(rows: planted.Rows) -> planted.Rows:
    return [replace(row, is_last=n == len(rows) - 1) for n, row in enumerate(reversed(rows))]


def reward_on_first_row(rows: planted.Rows) -> planted.Rows:
    return [replace(rows[0], reward=rows[-1].reward), *rows[1:-1], replace(rows[-1], reward=0.0)]


def without_last_row(rows: planted.Rows) -> planted.Rows:
    return [*rows[:-2], replace(rows[-2], is_last=True, reward=rows[-1].reward)]


def filler(row: DeliveredRow) -> DeliveredRow:
    """Return the smallest valid row, which SkyRL and TRL take for a failure."""
    one = replace(row, prompt_ids=(7,), response_ids=(7,), loss_mask=(0,), logprobs=(0.0,))
    return replace(one, tensors={}, images=None, reward=0.4)


def filler_with_images(row: DeliveredRow) -> DeliveredRow:
    return replace(filler(row), tensors=row.tensors)


DEFECTS: dict[str, tuple[Shape, str, planted.Spoil, str]] = {
    "mask shifted right": (
        WHOLE,
        "images",
        planted.on_row(0, planted.shift_mask(1)),
        "mask differs at response token 18: expected 0, got 1; the mask is shifted right by 1",
    ),
    "mask shifted left": (
        WHOLE,
        "text",
        planted.on_row(0, planted.shift_mask(-1)),
        "mask differs at response token 17: expected 1, got 0; the mask is shifted left by 1",
    ),
    "dropped newline": (
        WHOLE,
        "text",
        planted.on_row(0, planted.drop_token(newline_place("text"))),
        "response ids differ at token 18: expected 198, got 151644; "
        "1 token missing there, the rest is equal",
    ),
    "swapped image of another size": (
        WHOLE,
        "images",
        planted.on_row(0, planted.swap_images),
        "tensor pixel_values differs in image 0",
    ),
    "dropped image": (
        WHOLE,
        "images",
        planted.on_row(0, planted.drop_image),
        "tensor image_grid_thw has shape (3, 3), expected (4, 3): 3 of 4 images",
    ),
    "lost log-probability": (
        WHOLE,
        "abort_resumed",
        planted.on_row(0, planted.lose_logprob(53)),
        "log-probability of response token 53: expected -0.224609375, got 0.0 (lost)",
    ),
    "all log-probabilities lost": (
        WHOLE,
        "text",
        planted.on_row(0, lambda row: replace(row, logprobs=None)),
        "no log-probabilities were delivered",
    ),
    "reward on the wrong row": (
        STEPS,
        "images",
        reward_on_first_row,
        "row 0 of 4: reward differs: expected 0.0, got 2.0",
    ),
    "reward lost": (
        STEPS,
        "images",
        planted.on_row(-1, lambda row: replace(row, reward=None)),
        "row 3 of 4: no reward was delivered, expected 2.0",
    ),
    "observation left at the end": (
        WHOLE,
        "tool_calls",
        planted.on_row(0, planted.add_observation),
        "response ids continue after the 102 tokens expected, got 3 more "
        "(an observation after the last reply?)",
    ),
    "rows in another order": (
        STEPS,
        "thinking_rerender",
        reverse,
        "row 0 of 3: prompt ids continue after the 29 tokens expected, got 48 more; "
        "these are the ids of row 2: the order of the rows is wrong",
    ),
    "last row lost": (
        STEPS,
        "thinking_rerender",
        without_last_row,
        "row 1 of 3: the row is marked as the last one, which is wrong",
    ),
    "row lost after a good one": (
        STEPS,
        "thinking_rerender",
        lambda rows: rows[:-1],
        "3 rows expected, got 2",
    ),
    "row not marked as the last": (
        WHOLE,
        "text",
        planted.on_row(0, lambda row: replace(row, is_last=False)),
        "the row is not marked as the last one, which is wrong",
    ),
    "fault trained": (
        WHOLE,
        "env_fault_in_step",
        planted.on_row(0, lambda row: replace(row, loss_mask=(1,) * len(row.response_ids))),
        "mask differs at response token 0: expected 0, got 1; "
        "a trajectory without a reward trains nothing",
    ),
    "fault rewarded": (
        WHOLE,
        "engine_fault_later",
        planted.on_row(0, lambda row: replace(row, reward=0.0, is_unscorable=False)),
        "a trajectory without a reward is not marked as unscorable; "
        "the trainer would use the reward 0.0",
    ),
    "fault without a row": (
        STEPS,
        "env_fault_at_reset",
        lambda rows: [],
        "no row was delivered for a trajectory without a reward; a batch needs one, masked",
    ),
    "fault with an empty row": (
        WHOLE,
        "env_fault_at_reset",
        planted.on_row(0, lambda row: replace(row, response_ids=(), loss_mask=(), logprobs=())),
        "a row without a reward must still have prompt and response ids, got none",
    ),
    "fault with columns of two lengths": (
        STEPS,
        "env_fault_in_step",
        planted.on_row(1, lambda row: replace(row, logprobs=(0.0,))),
        "row 1 of 2: log-probabilities must have one entry for each of 18 response ids, got 1",
    ),
    "fault with an image less": (
        WHOLE,
        "env_fault_in_step",
        planted.on_row(0, planted.drop_image),
        "tensor image_grid_thw has shape (2, 3), expected (3, 3): 2 of 3 images",
    ),
    "filler row with images": (
        WHOLE,
        "env_fault_in_step",
        planted.on_row(0, filler_with_images),
        "a row without images was delivered with tensors ['image_grid_thw', 'pixel_values']",
    ),
    "truncation taken for a fault": (
        WHOLE,
        "episode_timeout",
        planted.on_row(0, lambda row: replace(row, is_unscorable=True)),
        "the row is marked as unscorable, but has the reward 0.5",
    ),
    "mask one entry short": (
        WHOLE,
        "text",
        planted.on_row(0, lambda row: replace(row, loss_mask=row.loss_mask[:-1])),
        "mask must have one entry for each of 86 response ids, got 85",
    ),
    "prompt cut": (
        WHOLE,
        "context_tokens",
        planted.on_row(0, lambda row: replace(row, prompt_ids=row.prompt_ids[:30])),
        "prompt ids end after 30 of 35 tokens",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_suite_catches_a_planted_defect_and_names_it(defect: str) -> None:
    shape, name, spoil, message = DEFECTS[defect]
    assert check(planted.projection(shape), recording(name)).verdict is ConformanceResult.PASS
    outcome = check(planted.projection(shape, spoil), recording(name))
    assert outcome.verdict is ConformanceResult.FAIL
    assert outcome.message == message or outcome.message.startswith(f"{message}: image")


def test_swapped_images_of_one_size_are_found_by_their_values() -> None:
    """Images 1 and 3 of the recording have one grid: no count and no shape differs."""
    one = recording("images")
    row = whole_row(one.trajectory, filler_id=0)
    parts = [feature.tensors["pixel_values"] for feature in row.features]
    pairs = [(a, b) for a in range(4) for b in range(a) if parts[a].shape == parts[b].shape]
    assert pairs
    later, earlier = pairs[0]

    def spoil(rows: planted.Rows) -> planted.Rows:
        order = list(range(4))
        order[later], order[earlier] = earlier, later
        pixels = np.concatenate([parts[n] for n in order])
        return [replace(rows[0], tensors={**rows[0].tensors, "pixel_values": pixels})]

    outcome = check(planted.projection(WHOLE, spoil), one)
    assert outcome.message == (
        f"tensor pixel_values differs in image {earlier}: image {later} of the row is there instead"
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            planted.swap_pictures,
            "image 0 is a different image: image 3 of the row is there instead",
        ),
        (planted.drop_picture, "3 images were delivered, expected 4"),
        (planted.other_image, "image 3 is a different image than the recorded one"),
        (planted.without_images, "no image was delivered, expected 4"),
    ],
)
def test_suite_catches_wrong_images_where_a_trainer_takes_images(
    spoil: planted.Change, message: str
) -> None:
    def images_only(rows: planted.Rows) -> planted.Rows:
        return [spoil(replace(row, tensors={})) for row in rows]

    good = planted.projection(
        WHOLE, lambda rows: [replace(r, tensors={}) for r in rows], with_images=True
    )
    assert check(good, recording("images")).verdict is ConformanceResult.PASS
    outcome = check(planted.projection(WHOLE, images_only, with_images=True), recording("images"))
    assert (outcome.verdict, outcome.message) == (ConformanceResult.FAIL, message)


def test_suite_catches_tensors_on_a_row_of_text() -> None:
    image = whole_row(recording("images").trajectory, filler_id=0).tensors
    spoilt = planted.projection(WHOLE, planted.on_row(0, lambda row: replace(row, tensors=image)))
    outcome = check(spoilt, recording("text"))
    assert outcome.message.startswith("a row without images was delivered with tensors")


def test_empty_tensors_of_a_text_row_are_not_an_image() -> None:
    empty = {"pixel_values": np.zeros((0, 1176), np.float32)}
    good = planted.projection(WHOLE, planted.on_row(0, lambda row: replace(row, tensors=empty)))
    assert check(good, recording("text")).verdict is ConformanceResult.PASS


@pytest.mark.parametrize("shape", [WHOLE, STEPS])
def test_failure_may_arrive_as_one_masked_filler_row(shape: Shape) -> None:
    for one in shipped_recordings():
        if one.trajectory.is_faulted:
            outcome = check(planted.projection(shape, lambda rows: [filler(rows[-1])]), one)
            assert outcome.verdict is ConformanceResult.PASS, outcome


def test_trainer_may_take_the_whole_reward_with_every_row() -> None:
    """A split trajectory in verl; a single row is the same either way."""

    def everywhere(rows: planted.Rows) -> planted.Rows:
        return [replace(row, reward=rows[-1].reward) for row in rows]

    split = planted.projection(STEPS, everywhere)
    assert check(split, recording("images")).message == (
        "row 0 of 4: reward differs: expected 0.0, got 2.0"
    )
    assert check(replace(split, rewards_every_row=True), recording("images")).message == ""
    lacking = check(replace(planted.projection(STEPS), rewards_every_row=True), recording("images"))
    assert lacking.message == "row 0 of 4: reward differs: expected 2.0, got 0.0"


@pytest.mark.slow
def test_every_single_token_of_every_recording_is_compared() -> None:
    """Change any one id, mask entry or log-probability: the suite finds that very place."""
    for one in shipped_recordings():
        if one.trajectory.is_faulted or len(one.trajectory.sequences()) > 1:
            continue
        length = len(whole_row(one.trajectory, filler_id=one.filler_id).response_ids)
        for place in range(length):
            for column in ("response_ids", "loss_mask", "logprobs"):
                outcome = check(
                    planted.projection(WHOLE, planted.on_row(0, _changed(column, place))), one
                )
                assert outcome.verdict is ConformanceResult.FAIL, (one.name, column, place)
                assert re.search(rf"token {place}\b", outcome.message), outcome.message


def _changed(column: str, place: int) -> planted.Change:
    def change(row: DeliveredRow) -> DeliveredRow:
        values = list(getattr(row, column))
        values[place] = 1 - values[place] if column == "loss_mask" else values[place] - 1
        return replace(row, **{column: values})

    return change
