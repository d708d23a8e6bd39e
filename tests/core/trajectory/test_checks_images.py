"""The placeholder of images, which is inferred from the ids of a ledger."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from fakes.trajectories import Reply, build, picture

from envkit.messages import message
from envkit.trajectory import Rule, Segment, Trajectory, check_trajectory

Ids = tuple[int, ...]


def shown(*parts: tuple[Ids, Ids, int]) -> list[str]:
    """Return what is wrong with images in a ledger of prompts with wire ids, train ids, images."""
    whole = build((Reply(),))
    prompt, reply = whole.segments
    prompts: list[Segment] = []
    for wire, train, count in parts:
        images = tuple(picture(number) for number in range(count))
        prompts.append(replace(prompt, wire_ids=wire, train_ids=train, images=images,
                               loss_mask=None, logprobs=None))  # fmt: skip
    first = message("user", "look", prompts[0].images)
    trajectory: Trajectory = replace(whole, segments=(*prompts, reply), messages=(first,))
    return [one.message for one in check_trajectory(trajectory) if one.rule is Rule.IMAGES]


REPEATED = [
    ((9,), (9,), 1),  # not expanded
    ((9,), (9, 9, 9), 1),
    ((9, 1), (9, 9, 1), 1),
    ((1, 9), (1, 9, 9), 1),
    ((1, 9, 2, 9, 3), (1, 9, 9, 2, 9, 9, 9, 3), 2),
    ((9, 2, 9), (9, 2, 9, 9), 2),
]
MARKED = [  # expanded to other ids
    ((9,), (7,), 1),
    ((9,), (7, 8), 1),
    ((1, 9, 2), (1, 7, 9, 8, 2), 1),
    ((1, 9, 2), (1, 2, 2), 1),
    ((1, 9, 2, 9, 3), (1, 7, 7, 2, 7, 7, 3), 2),
    ((1, 9, 2, 9, 3), (1, 7, 2, 2, 7, 3), 2),
    ((1, 9, 2, 4, 9, 3), (1, 7, 2, 5, 2, 4, 7, 3), 2),  # the chunk's first id comes earlier
    ((1, 9, 2, 4, 9, 3), (1, 7, 2, 2, 4, 7, 3), 2),  # right before it
    ((9, 9), (7, 8), 2),
    ((9, 9), (7, 8, 8), 2),
    ((1, 9, 9, 2), (1, 7, 8, 8, 2), 2),
    ((9, 2, 9, 3, 9), (7, 2, 7, 3, 7), 3),
]


@pytest.mark.parametrize("part", [*REPEATED, *MARKED])
def test_check_accepts_placeholders_that_expand_to_one_id_or_more(
    part: tuple[Ids, Ids, int],
) -> None:
    assert shown(part) == []


@pytest.mark.parametrize(
    ("wire", "train", "count"),
    [
        ((9,), (9,), 2),
        ((9, 9), (9, 9), 1),
        ((9, 9), (9, 9, 9), 1),
        ((1, 9), (1,), 1),  # an image without a token
        ((1, 9, 2), (1, 2), 1),
        ((9, 9), (7,), 2),
        ((1, 9, 9, 2), (1, 7, 2), 2),
        ((9, 2, 9), (7, 2), 2),
        ((9, 2, 9), (2, 7), 2),
        ((9, 2, 9, 3), (7, 2, 3), 2),
        ((9, 2, 3, 9), (7, 2, 7, 3, 7), 2),  # the text between changed
        ((1, 9, 2, 2), (1, 9, 9, 2, 3), 1),  # the text after changed
        ((1, 9, 2, 3), (1, 9, 9, 3, 2), 1),
        ((1, 9, 1), (2, 9, 9, 1), 1),  # the text before changed
        ((1, 2, 9, 2), (1, 3, 9, 9, 2), 1),
    ],
)
def test_check_refuses_images_that_no_token_can_stand_for(
    wire: Ids, train: Ids, count: int
) -> None:
    assert shown((wire, train, count)) == [
        f"segment 0 has {count} images, but no token occurs once per image in its wire ids and "
        "expands them to its train ids"
    ]


def test_check_refuses_ids_that_differ_without_images() -> None:
    assert shown(((1, 2), (1, 2, 2), 0)) == [
        "segment 0 has no images, but its wire ids and train ids differ"
    ]
    assert shown(((1, 9), (1, 9, 9), 1), ((1, 2), (1, 3), 0)) == [
        "segment 1 has no images, but its wire ids and train ids differ"
    ]


@pytest.mark.parametrize(
    ("second", "is_sound"),
    [
        (((4, 9, 5), (4, 9, 9, 5), 1), True),
        (((4, 8, 5), (4, 8, 8, 5), 1), False),  # another placeholder
        (((4, 6, 5), (4, 6, 5), 0), True),
        (((4, 9, 5), (4, 9, 5), 0), False),  # the placeholder without an image
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_check_wants_one_placeholder_in_all_segments(
    second: tuple[Ids, Ids, int], is_sound: bool, is_first: bool
) -> None:
    first = ((1, 9, 2), (1, 9, 9, 2), 1)
    found = shown(second, first) if is_first else shown(first, second)
    assert (not found) is is_sound


def _unexpanded(wire: Sequence[int], count: int) -> tuple[Ids, Ids, int]:
    return tuple(wire), tuple(wire), count


def test_check_keeps_every_candidate_until_a_segment_rules_it_out() -> None:
    first = _unexpanded((8, 9), 1)  # 8 or 9
    assert shown(first) == []
    assert shown(first, _unexpanded((8,), 0)) == []
    assert shown(first, _unexpanded((9,), 0)) == []
    assert shown(first, _unexpanded((8, 9), 0)) == [
        "the placeholder token occurs in a segment without images"
    ]
    assert shown(first, _unexpanded((8,), 1), _unexpanded((9,), 0)) == []
    assert shown(first, _unexpanded((8,), 1), _unexpanded((8,), 0)) != []


def test_check_prefers_a_placeholder_that_is_repeated() -> None:
    part = ((8, 9), (8, 9, 9), 1)  # 8 could stand for (8, 9), but 9 is repeated
    assert shown(part, _unexpanded((8,), 0)) == []
    assert shown(part, _unexpanded((9,), 0)) != []
