"""Chat messages: order of parts, and what is refused."""

from typing import Any

import pytest
from PIL import Image as PilImage

from envkit.errors import ContractError
from envkit.images import Image
from envkit.messages import check_message, images_of, message, text_of

RED = Image.from_pil(PilImage.new("RGB", (2, 2), "red"))
BLUE = Image.from_pil(PilImage.new("RGB", (2, 2), "blue"))


def test_message_without_images_is_a_plain_string() -> None:
    assert message("tool", "3") == {"role": "tool", "content": "3"}


def test_message_puts_images_before_the_text() -> None:
    entry = message("user", "Which?", [RED, BLUE])

    assert entry["content"] == [
        {"type": "image", "image": RED},
        {"type": "image", "image": BLUE},
        {"type": "text", "text": "Which?"},
    ]
    assert images_of([message("system", "s"), entry, message("user", "", [RED])]) == (
        RED,
        BLUE,
        RED,
    )
    assert text_of(entry) == "Which?"
    assert text_of(message("user", "plain")) == "plain"


def test_good_message_is_returned_as_it_is() -> None:
    entry = message("user", "Which?", [RED])

    assert check_message(entry, source="test") is entry


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        (None, "must return a message"),
        ({"role": "user"}, "must return a message"),
        ({"role": "human", "content": ""}, "got 'human'"),
        ({"role": "user", "content": 5}, "got int"),
        ({"role": "user", "content": ["text"]}, "a part must be"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "a part must be"),
        ({"role": "user", "content": [{"type": "image", "image": "x.png"}]}, "a part must be"),
        ({"role": "system", "content": [{"type": "image", "image": RED}]}, "role 'system'"),
        (
            {"role": "user", "content": [{"type": "image", "image": b"\x89PNG"}]},
            "envkit.Image",
        ),
    ],
)
def test_wrong_message_names_its_maker_and_the_rule(entry: Any, part: str) -> None:
    with pytest.raises(ContractError, match=r"geo3k\.format_observation") as caught:
        check_message(entry, source="geo3k.format_observation")

    assert part in str(caught.value)
