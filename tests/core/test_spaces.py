"""Spaces: samples are inside, spaces compare and copy, masks are refused."""

import copy
import pickle
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.spaces import Choice, ImageSpace, UnicodeText, observation_space, response_space

SPACES: list[gymnasium.Space[Any]] = [
    UnicodeText(),
    UnicodeText(3),
    ImageSpace(),
    Choice(("a", "b")),
]


@pytest.mark.parametrize("space", [*SPACES, observation_space(), response_space()], ids=repr)
def test_samples_are_inside_and_repeat_by_seed(space: gymnasium.Space[Any]) -> None:
    space.seed(5)
    first = [space.sample() for _ in range(20)]
    space.seed(5)
    second = [space.sample() for _ in range(20)]

    assert all(sample in space for sample in first)
    assert first == second
    assert not space.is_np_flattenable


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_spaces_compare_by_value_and_travel(space: gymnasium.Space[Any]) -> None:
    assert copy.deepcopy(space) == space
    assert pickle.loads(pickle.dumps(space)) == space
    assert hash(copy.deepcopy(space)) == hash(space)
    assert sum(space == other for other in SPACES) == 1


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_masked_sampling_is_refused(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigurationError, match="no masked sampling"):
        space.sample(mask=1)


@given(text=st.text())
def test_unicode_text_takes_any_string(text: str) -> None:
    assert text in UnicodeText()


def test_spaces_refuse_what_is_too_large_or_of_another_type() -> None:
    wide = Image.from_pil(PilImage.new("L", (9, 1)))

    assert "four" not in UnicodeText(3)
    assert 5 not in UnicodeText()
    assert wide not in ImageSpace(8)
    assert wide in ImageSpace(9)
    assert wide.array() not in ImageSpace()
    assert "c" not in Choice(("a", "b"))


def test_observation_space_has_fixed_keys() -> None:
    image = Image.from_pil(PilImage.new("L", (2, 2)))
    good = {"text": "x", "images": (image,), "role": "user"}

    assert good in observation_space()
    assert {**good, "images": [image]} not in observation_space()
    assert {**good, "extra": 1} not in observation_space()
    assert {"text": "x", "images": ()} not in observation_space()
    assert {**good, "role": "system"} not in observation_space()
