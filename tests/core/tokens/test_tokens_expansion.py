"""How images become tokens: in any context, with their text, or with the images before them."""

import re
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes.boundaries import at_limit
from fakes.small_chat import (
    TOKENS,
    identity,
    ids_of,
    small_template,
    small_tokenizer,
    template_with,
)
from hypothesis import given
from tokenizers import AddedToken

from envkit.errors import ImageError, TemplateError
from envkit.images import Image
from envkit.tokens.expansion import Expansion, ImageRules, expand_text, prove
from envkit.tokens.joining import JoinRule
from envkit.tokens.processors import ProcessorCall
from envkit.tokens.rules import ImageSyntax
from envkit.tokens.template import ChatTemplate

IMG, END, STOP = (identity(token) for token in ("<img>", "<end>", "<stop>"))
LETTER = ids_of("b")[0]
SYNTAX = ImageSyntax(placeholder="<img>", placeholder_id=IMG, markup="<img>", numbered=False)
TEXT = "{{ messages[0].content }}"
SIZES = [(64, 48), (300, 90), (120, 400)]
Write = Callable[[str, list[Any]], list[int]]


class Processor:
    """Writes ids by a function; it needs an image, and as many placeholders as images."""

    image_processor: Any = None

    def __init__(self, write: Write, placeholder: str = "<img>") -> None:
        self.write, self.placeholder = write, placeholder
        self.calls: list[list[Any]] = []

    def __call__(self, *, text: list[str], images: list[Any], **_: Any) -> dict[str, Any]:
        if not images or text[0].count(self.placeholder) != len(images):
            raise ValueError("one image for each placeholder")
        self.calls.append(images)
        sizes = np.array([image.size for image in images])
        return {"input_ids": [self.write(text[0], images)], "pixel_values": sizes}


def splicing(*ids: int, encode: Callable[[str], list[int]] = ids_of, mark: int = IMG) -> Write:
    """Return a writer that replaces each placeholder by ids, the first one once per 50 pixels."""

    def write(text: str, images: list[Any]) -> list[int]:
        result: list[int] = []
        left = list(images)
        for one in encode(text):
            result += [one] if one != mark else [*ids[:1] * (left.pop(0).width // 50), *ids[1:]]
        return result

    return write


def numbering(text: str, images: list[Any]) -> list[int]:
    """Write the number of each image before it, as MiniCPM-V does."""
    numbers = iter(range(len(images)))
    return ids_of(re.sub("<img>", lambda _: f"{next(numbers)}<img><img>", text))


def spacing(text: str, images: list[Any]) -> list[int]:
    """Write a space between an image and a word after it, as Idefics2 does."""
    del images
    return ids_of(re.sub(r"<img>(?=\w)", "<img> ", text))


def counting(text: str, images: list[Any]) -> list[int]:
    """Write the number of all images of the call before each of them."""
    return ids_of(text.replace("<img>", f"{len(images)}<img>"))


def repeating(text: str, images: list[Any]) -> list[int]:
    """Write every image as often as there are images in the call."""
    return ids_of(text.replace("<img>", "<img>" * len(images)))


def prefixing(text: str, images: list[Any]) -> list[int]:
    """Start every text with a token, like a beginning of text."""
    del images
    return ids_of(f"<bot>{text}")


def call_of(processor: Any) -> ProcessorCall:
    return ProcessorCall(processor, None, placeholder="<img>", placeholder_id=IMG)


def proven(write: Write, **known: Any) -> ImageRules:
    template = known.pop("template", None) or small_template(TEXT)
    return prove(call_of(Processor(write)), template, SYNTAX, "<user>")


# ---- which way is proven


@pytest.mark.parametrize(
    "ids", [(IMG,), (END,), (END, STOP), (END, LETTER, STOP), (END, LETTER, IMG)]
)
def test_images_between_control_tokens_expand_in_any_context(ids: tuple[int, ...]) -> None:
    rules = proven(splicing(*ids))
    assert rules.expansion is Expansion.IDS
    assert rules.joining.rules == {"pixel_values": JoinRule()}


def test_processor_that_writes_no_token_for_an_image_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"Processor is not supported.*no token.*64x48"):
        proven(splicing())


def test_processor_that_writes_no_token_for_small_images_is_refused_with_one() -> None:
    call = call_of(Processor(splicing(IMG)))  # one token per 50 pixels of width
    assert call.image(picture(50)).ids == (IMG,)
    with pytest.raises(ImageError, match="no token for an image of 49x60 pixels"):
        call.image(picture(49))


@pytest.mark.parametrize(
    "ids", [(LETTER,), (LETTER, STOP), (END, LETTER), (LETTER, STOP, END), (END, STOP, LETTER)]
)
def test_images_that_start_or_end_with_text_expand_with_their_text(ids: tuple[int, ...]) -> None:
    # Other text could merge with them.
    assert proven(splicing(*ids)).expansion is Expansion.TEXT


@pytest.mark.parametrize(
    ("place", "flag"),
    [
        *product(("first", "last"), (None, "lstrip", "rstrip", "single_word")),
        *product(("placeholder",), (None, "lstrip", "rstrip")),
    ],
)
def test_images_next_to_a_token_that_takes_its_neighbours_expand_with_their_text(
    place: str, flag: str | None
) -> None:
    flags: dict[str, Any] = {flag: True} if flag else {}
    template = template_with(AddedToken("<odd>", normalized=False, **flags), TEXT)
    (odd,) = template.encode("<odd>")
    mark, name = (odd, "<odd>") if place == "placeholder" else (IMG, "<img>")
    ids = {"first": (odd, END), "last": (END, odd), "placeholder": (END, STOP)}[place]
    write = splicing(*ids, encode=template.encode, mark=mark)
    call = ProcessorCall(Processor(write, name), None, placeholder=name, placeholder_id=mark)
    syntax = ImageSyntax(placeholder=name, placeholder_id=mark, markup=name, numbered=False)
    expected = Expansion.IDS if flag is None else Expansion.TEXT
    assert prove(call, template, syntax, "<user>").expansion is expected


def test_placeholder_that_a_letter_hides_is_refused() -> None:
    template = template_with(AddedToken("<odd>", normalized=False, single_word=True), TEXT)
    (odd,) = template.encode("<odd>")
    processor = Processor(splicing(odd, encode=template.encode, mark=odd), "<odd>")
    call = ProcessorCall(processor, None, placeholder="<odd>", placeholder_id=odd)
    syntax = ImageSyntax(placeholder="<odd>", placeholder_id=odd, markup="<odd>", numbered=False)
    with pytest.raises(TemplateError, match="Processor is not supported"):
        prove(call, template, syntax, "<user>")


def test_repeated_placeholders_expand_in_any_context_whatever_the_token_takes() -> None:
    template = template_with(AddedToken("<odd>", normalized=False, lstrip=True), TEXT)
    (odd,) = template.encode("<odd>")
    write = splicing(odd, encode=template.encode, mark=odd)
    call = ProcessorCall(Processor(write, "<odd>"), None, placeholder="<odd>", placeholder_id=odd)
    syntax = ImageSyntax(placeholder="<odd>", placeholder_id=odd, markup="<odd>", numbered=False)
    assert prove(call, template, syntax, "<user>").expansion is Expansion.IDS


class Plain:
    """A tokenizer that does not describe its added tokens."""

    eos_token_id = END
    chat_template = TEXT

    def encode(self, text: str, **_: Any) -> list[int]:
        return ids_of(text)

    def decode(self, token_ids: Any, **_: Any) -> str:
        return str(token_ids)

    def get_added_vocab(self) -> dict[str, int]:
        return {token: identity(token) for token in TOKENS}

    def apply_chat_template(self, conversation: Any, **_: Any) -> str:
        return conversation[0]["content"]

    def __len__(self) -> int:
        return 300


def test_images_of_tokens_that_nothing_describes_expand_with_their_text() -> None:
    tokenizer: Any = Plain()
    template = ChatTemplate(tokenizer, tokenizer.chat_template, kwargs={})
    assert proven(splicing(END, STOP), template=template).expansion is Expansion.TEXT
    assert proven(splicing(IMG), template=template).expansion is Expansion.IDS


def test_images_that_change_the_text_after_them_expand_with_their_text() -> None:
    assert proven(spacing).expansion is Expansion.TEXT


def test_numbered_images_expand_after_the_earlier_ones() -> None:
    assert proven(numbering).expansion is Expansion.NUMBERED


@pytest.mark.parametrize("write", [repeating, prefixing])
def test_images_that_depend_on_all_images_of_a_call_are_refused(write: Write) -> None:
    with pytest.raises(TemplateError, match=r"^Processor is not supported: .*in an unknown way"):
        proven(write)


def test_processor_that_rejects_ordinary_images_is_refused() -> None:
    def reject(text: str, images: list[Any]) -> list[int]:
        raise ValueError("no kernel")

    with pytest.raises(TemplateError, match=r"Processor is not supported: .*'<img>': .*no kernel"):
        proven(reject)


class Framing(Processor):
    """Reads an image only between two control tokens, as its chat template writes it."""

    tokenizer = small_tokenizer()

    def __call__(self, *, text: list[str], images: list[Any], **_: Any) -> dict[str, Any]:
        if text[0].count("<user><img><bot>") != text[0].count("<img>"):
            raise ValueError("no frame")
        return super().__call__(text=text, images=images)


def framed(markup: str) -> tuple[ProcessorCall, ImageSyntax]:
    syntax = ImageSyntax(placeholder="<img>", placeholder_id=IMG, markup=markup, numbered=False)
    return call_of(Framing(splicing(END, STOP))), syntax


def test_images_that_need_the_markup_of_the_template_are_proven_with_it() -> None:
    call, syntax = framed("<user><img><bot>")
    rules = prove(call, small_template(TEXT), syntax, "<user>")
    assert rules.expansion is Expansion.IDS
    # Later images are processed as in the proof.
    assert call.image(picture(100)).ids == (END, END, STOP)


def test_processor_that_also_rejects_the_markup_of_the_template_is_refused() -> None:
    call, syntax = framed("<bot><img><user>")
    message = r"Framing is not supported: .* text '<bot><img><user>': .*no frame"
    with pytest.raises(TemplateError, match=message):
        prove(call, small_template(TEXT), syntax, "<user>")


# ---- what the proof shows to a processor


def test_proof_shows_a_small_a_wide_and_a_tall_image_of_noise_and_the_first_one_again() -> None:
    processor = Processor(splicing(IMG))
    prove(call_of(processor), small_template(TEXT), SYNTAX, "<user>")
    assert [[image.size for image in call] for call in processor.calls] == [
        *([size] for size in SIZES),
        [*SIZES, SIZES[0]],
    ]
    for image in processor.calls[3]:
        shape = (image.height, image.width, 3)
        noise = np.random.default_rng(image.width).integers(0, 256, shape, dtype=np.uint8)
        np.testing.assert_array_equal(np.asarray(image), noise)


@pytest.mark.parametrize(
    ("pinpoints", "areas"),
    [
        ([], []),
        ([(90, 60)], [5400]),
        ([(60, 90), (90, 60)], [5400]),
        ([(90, 60), (60, 60)], [3600, 5400]),
        ([(120, 120), (60, 90), (90, 60), (90, 120), (60, 120)], [5400, 7200]),
    ],
)
def test_proof_shows_the_two_smallest_areas_of_a_processor_of_many_resolutions(
    pinpoints: list[tuple[int, int]], areas: list[int]
) -> None:
    processor = Processor(splicing(IMG))
    processor.image_processor = SimpleNamespace(image_grid_pinpoints=pinpoints)
    prove(call_of(processor), small_template(TEXT), SYNTAX, "<user>")
    *probes, last = processor.calls[-1]
    shown = [image.size for image in probes[len(SIZES) :]]
    assert [image.size for image in (*probes[: len(SIZES)], last)] == [*SIZES, SIZES[0]]
    assert [width * height for width, height in shown] == areas
    assert {(height, width) for width, height in shown} <= {*pinpoints}


def test_proof_refuses_tensors_that_do_not_join() -> None:
    processor = Processor(splicing(IMG))

    class Doubling(Processor):
        def __call__(self, **inputs: Any) -> dict[str, Any]:
            output = processor(**inputs)
            return {**output, "pixel_values": output["pixel_values"] * len(inputs["images"])}

    template = small_template(TEXT)
    with pytest.raises(TemplateError, match=r"Doubling is not supported: .*'pixel_values'"):
        prove(call_of(Doubling(splicing(IMG))), template, SYNTAX, "<user>")


class Qwen2VLSmall:
    """An image processor that writes one token per patch of 10 pixels."""

    merge_size = 1

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def __call__(self, *, images: list[Any], **_: Any) -> dict[str, Any]:
        grids = [[1, image.height // 10, image.width // 10] for image in images]
        pixels = [np.full((image.width, image.width), image.height) for image in images]
        if self.axis == 0:
            pixels = [one[:, :8] for one in pixels]
        if self.axis == 1:
            pixels = [one[:8] for one in pixels]
        joined = np.concatenate(pixels[: len(images)], axis=max(self.axis, 0))
        return {"image_grid_thw": np.array(grids), "pixel_values": joined}


@pytest.mark.parametrize("axis", [0, 1])
def test_image_processor_alone_is_proven_on_one_call_for_all_probes(axis: int) -> None:
    call = ProcessorCall(None, Qwen2VLSmall(axis), placeholder="<img>", placeholder_id=IMG)
    rules = prove(call, small_template(TEXT), SYNTAX, "<user>")
    assert rules.expansion is Expansion.IDS
    assert rules.joining.family == "Qwen2VLSmall"
    assert rules.joining.rules["pixel_values"] == JoinRule(axis=axis)


def test_image_processor_alone_that_counts_no_token_for_an_image_is_refused_with_it() -> None:
    call = ProcessorCall(None, Qwen2VLSmall(0), placeholder="<img>", placeholder_id=IMG)
    assert call.image(picture(20)).ids
    with pytest.raises(ImageError, match="Qwen2VLSmall must write a token for every image"):
        call.image(picture(9))


# ---- text with images after others


def picture(width: int) -> Image:
    return Image.from_array(np.zeros((60, width, 3), np.uint8))


@given(earlier=at_limit(1))
def test_text_is_numbered_after_the_earlier_images(earlier: int) -> None:
    images = [picture(50), picture(60)]
    ids = expand_text(call_of(Processor(numbering)), "a<img>b<img>c", images, earlier=earlier)
    assert list(ids) == ids_of(f"a{earlier}<img><img>b{earlier + 1}<img><img>c")


def test_earlier_images_are_the_smallest_probe() -> None:
    processor = Processor(numbering)
    expand_text(call_of(processor), "<img>", [picture(50)], earlier=2)
    small = [SIZES[0]] * 2
    assert [[image.size for image in call] for call in processor.calls] == [
        small,
        [*small, (50, 60)],
    ]


def test_earlier_images_that_change_with_the_text_after_them_are_refused() -> None:
    call = call_of(Processor(counting))
    with pytest.raises(TemplateError, match="Processor writes 1 earlier images differently"):
        expand_text(call, "<img>", [picture(50)], earlier=1)


def test_image_that_a_processor_rejects_is_named_as_such() -> None:
    call = call_of(Processor(numbering))
    with pytest.raises(ImageError, match="one image for each placeholder"):
        expand_text(call, "no image", [picture(50)], earlier=0)
