"""How tensors of single images join into those of a conversation, and which rules are refused."""

from typing import Any

import numpy as np
import pytest

from envkit.errors import TemplateError
from envkit.tokens.joining import CONCATENATION, Joining, JoinRule, find_joining

Images = list[dict[str, Any]]


def arrays(*shapes: tuple[int, ...]) -> Images:
    rng = np.random.default_rng(0)
    return [{"x": rng.random(shape, dtype=np.float32)} for shape in shapes]


def padded(part: Any, *after: int, fill: int = 0) -> Any:
    return np.pad(part, [(0, size) for size in after], constant_values=fill)


# ---- one rule


def test_join_rule_without_padding_concatenates_along_its_axis() -> None:
    one, two = (image["x"] for image in arrays((1, 2), (1, 2)))
    assert JoinRule().join([one, two]).shape == (2, 2)
    assert JoinRule(axis=1).join([one, two]).tolist() == [[*one[0], *two[0]]]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("fill", [0, 1, -1])
def test_join_rule_pads_the_other_axes_to_the_largest_image(axis: int, fill: int) -> None:
    # The largest size of one axis is in the first image, that of the other in the second.
    one, two = np.full((2, 5, 3), 7), np.full((4, 1, 6), 8)
    largest = [4, 5, 6]
    largest[axis] = one.shape[axis] + two.shape[axis]
    expected = np.full(largest, fill)
    at_one = tuple(slice(0, size) for size in one.shape)
    start = [0, 0, 0]
    start[axis] = one.shape[axis]
    at_two = tuple(slice(a, a + size) for a, size in zip(start, two.shape, strict=True))
    expected[at_one], expected[at_two] = one, two
    joined = JoinRule(axis=axis, padding=fill).join([one, two])
    assert joined.tolist() == expected.tolist()


def test_join_rule_says_its_axis_and_padding() -> None:
    assert str(JoinRule(axis=1)) == "axis 1"
    assert str(JoinRule(padding=0)) == "axis 0, padded with 0"


# ---- all tensors of some images


@pytest.mark.parametrize("count", [1, 2, 3])
def test_joined_tensors_follow_their_rules_or_the_first_axis(count: int) -> None:
    images = [{"x": np.full((1, 2), n), "y": np.full((1, 2), n)} for n in range(count)]
    joined = Joining(rules={"x": JoinRule(axis=1)}).join(images)
    assert joined["x"].tolist() == [[n for n in range(count) for _ in range(2)]]
    assert joined["y"].tolist() == [[n, n] for n in range(count)]


def test_joined_tensors_of_no_images_are_none() -> None:
    assert CONCATENATION.join([]) == {}


def test_join_names_family_and_tensor_where_images_do_not_fit() -> None:
    joining = Joining(family="LlavaProcessor", rules={"x": JoinRule(axis=0)})
    with pytest.raises(TemplateError, match=r"LlavaProcessor joins 'x' along axis 0.*\(1, 2\)"):
        joining.join(arrays((1, 2), (1, 3)))


def test_joined_tensors_are_the_callers_own() -> None:
    (alone,) = arrays((1, 2))
    alone["x"].flags.writeable = False
    for images in ([alone], [alone, alone]):
        joined = Joining().join(images)["x"]
        assert joined.flags.writeable
        assert not np.shares_memory(joined, alone["x"])


def test_joining_is_plain_if_every_tensor_is_concatenated_along_its_first_axis() -> None:
    plain, other = JoinRule(axis=0), JoinRule(axis=1)
    assert CONCATENATION.is_plain
    assert Joining(rules={"x": plain, "y": plain}).is_plain
    assert not Joining(rules={"x": plain, "y": other}).is_plain
    assert not Joining(rules={"x": JoinRule(axis=0, padding=0)}).is_plain


def test_joining_reads_what_it_wrote() -> None:
    rules = {"x": JoinRule(axis=2), "y": JoinRule(axis=1, padding=-1), "z": JoinRule(padding=0)}
    joining = Joining(family="P", rules=rules)
    assert Joining.from_json(joining.to_json()) == joining


# ---- finding the rules


def test_join_rule_is_the_first_that_gives_the_processors_batch() -> None:
    one, two = arrays((1, 2, 3), (1, 4, 3))
    stacked = {"x": np.concatenate([one["x"], two["x"]], axis=1)}
    found = find_joining("P", [one, two], stacked)
    assert (found.family, found.rules["x"]) == ("P", JoinRule(axis=1))
    filled = {"x": np.concatenate([padded(one["x"], 0, 2, 0), two["x"]])}
    assert find_joining("P", [one, two], filled).rules["x"] == JoinRule(axis=0, padding=0)


def test_join_rule_without_padding_comes_first() -> None:
    one, two = arrays((1, 2), (1, 2))
    batch = {"x": np.concatenate([one["x"], two["x"]], axis=1)}
    assert find_joining("P", [one, two], batch).rules["x"] == JoinRule(axis=1)


@pytest.mark.parametrize("fill", [0, 1, -1])
@pytest.mark.parametrize("axis", [0, 1])
def test_join_rule_finds_the_value_and_the_axis_of_padding(axis: int, fill: int) -> None:
    one, two = arrays((2, 2, 2), (2, 2, 3))
    parts = [padded(one["x"], 0, 0, 1, fill=fill), two["x"]]
    batch = {"x": np.concatenate(parts, axis=axis)}
    rule = find_joining("P", [one, two], batch).rules["x"]
    assert rule == JoinRule(axis=axis, padding=fill)


@pytest.mark.parametrize("fill", [-2, 2])
def test_join_refuses_padding_with_an_unknown_value(fill: int) -> None:
    one, two = arrays((1, 2), (1, 3))
    batch = {"x": np.concatenate([padded(one["x"], 0, 1, fill=fill), two["x"]])}
    with pytest.raises(TemplateError, match=r"no known rule joins its 'x'.*\(2, 3\)"):
        find_joining("P", [one, two], batch)


@pytest.mark.parametrize("key", ["x", "more"])
def test_join_refuses_a_batch_that_no_rule_gives(key: str) -> None:
    one, two = arrays((1, 2), (1, 2))
    batch = {"x": np.concatenate([one["x"], two["x"]]), key: np.zeros((2, 2), np.float32)}
    with pytest.raises(TemplateError, match=f"^P is not supported: .*'{key}'"):
        find_joining("P", [one, two], batch)


def test_join_refuses_equal_numbers_of_another_type() -> None:
    one, two = arrays((1, 2), (1, 2))
    batch = {"x": np.concatenate([one["x"], two["x"]]).astype(np.float64)}
    with pytest.raises(TemplateError, match="'x'"):
        find_joining("P", [one, two], batch)


@pytest.mark.parametrize("holders", [[0], [1], [0, 1]])
def test_join_refuses_a_tensor_of_single_images_that_the_batch_lacks(holders: list[int]) -> None:
    images = arrays((1, 2), (1, 2))
    batch = {"x": np.concatenate([image["x"] for image in images])}
    for at in holders:
        images[at]["more"] = np.zeros((1, 2))
    with pytest.raises(TemplateError, match=r"'more'.*got shape None"):
        find_joining("P", images, batch)


@pytest.mark.parametrize("lacking", [0, 1, 2])
def test_join_takes_a_tensor_that_some_images_lack(lacking: int) -> None:
    images = arrays((1, 2), (2, 2), (3, 2))
    del images[lacking]["x"]
    batch = {"x": np.concatenate([image["x"] for image in images if image])}
    joining = find_joining("P", images, batch)
    assert np.array_equal(joining.join(images)["x"], batch["x"])
    assert joining.join([images[lacking]]) == {}


def test_join_refuses_a_batch_with_rows_for_an_image_without_the_tensor() -> None:
    images = arrays((1, 2), (1, 2), (1, 2))
    batch = {"x": np.concatenate([image["x"] for image in images])}
    del images[2]["x"]
    with pytest.raises(TemplateError, match="'x'"):
        find_joining("P", images, batch)
