"""How a processor turns placeholders into a model's image tokens, proven on probe images.

An observation is expanded alone, but the model must see what the processor writes in the whole
conversation. Three ways are tried against the processor's own ids of a text in two pieces, and the
cheapest match is used. A processor that matches none is rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from envkit.errors import ImageError, TemplateError
from envkit.images import Image
from envkit.tokens.joining import Joining, find_joining
from envkit.tokens.placeholders import replace_each
from envkit.tokens.processors import Processed, ProcessorCall
from envkit.tokens.rules import ImageSyntax
from envkit.tokens.template import ChatTemplate

_SIZES: Final = ((64, 48), (300, 90), (120, 400))
"""Width and height of the probes: small, wide and tall, to cover different tiling and padding."""


class Expansion(StrEnum):
    """How placeholders become image tokens."""

    IDS = "ids"
    """Each placeholder id becomes the ids of its image, in any context."""
    TEXT = "text"
    """The processor expands the text of each observation: image text merges with its neighbours."""
    NUMBERED = "numbered"
    """As TEXT, after as many stand-ins as there were earlier images: the processor numbers them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRules:
    """The proven behaviour of a processor."""

    expansion: Expansion
    joining: Joining


def prove(
    call: ProcessorCall, template: ChatTemplate, syntax: ImageSyntax, anchor: str
) -> ImageRules:
    """Return how a processor expands and joins images.

    Args:
        call: The processor.
        template: Encodes text as the codec does.
        syntax: The placeholder.
        anchor: The special token that every observation starts with.

    Raises:
        TemplateError: Its output for several images cannot be computed from single images.
    """
    problem: ImageError | None = None
    for markup in dict.fromkeys((syntax.placeholder, syntax.markup)):
        call.markup = markup
        try:
            return _prove(call, template, syntax, anchor)
        except ImageError as error:
            problem = problem or error
    raise TemplateError(
        f"{call.family} is not supported: it cannot process ordinary images in the text "
        f"{call.markup!r}: {problem}"
    ) from problem


def _prove(
    call: ProcessorCall, template: ChatTemplate, syntax: ImageSyntax, anchor: str
) -> ImageRules:
    probes = [_probe(*size) for size in (*_SIZES, *_tilings(call.image_processor))]
    alone = [call.image(probe) for probe in probes]
    tensors = [one.tensors for one in alone]
    # Without text there is nothing to merge with: each image has its own ids.
    if not call.is_whole:
        batch = call.batch(probes)
        joining = find_joining(call.family, tensors, batch.tensors)
        return ImageRules(expansion=Expansion.IDS, joining=joining)
    shown = [*probes, probes[0]]
    pieces = _pieces(anchor, call.markup, len(shown))
    text = "".join(pieces)
    whole = call.text(text, shown)
    joining = find_joining(call.family, [*tensors, tensors[0]], whole.tensors)
    ids, images = template.encode(text), [one.ids for one in (*alone, alone[0])]
    is_marked = ids.count(syntax.placeholder_id) == len(images)
    spliced = replace_each(ids, syntax.placeholder_id, images) if is_marked else ()
    if tuple(spliced) == whole.ids and _stands_alone(template, syntax, alone):
        return ImageRules(expansion=Expansion.IDS, joining=joining)
    for expansion in (Expansion.TEXT, Expansion.NUMBERED):
        earlier = int(expansion is Expansion.NUMBERED)
        before, first, second = pieces
        parts = (
            *template.encode(before),
            *expand_text(call, first, shown[:1], earlier=0),
            *expand_text(call, second, shown[1:], earlier=earlier),
        )
        if parts == whole.ids:
            return ImageRules(expansion=expansion, joining=joining)
    raise TemplateError(
        f"{call.family} is not supported: the image tokens of a message depend on earlier "
        "messages in an unknown way"
    )


def _tilings(processor: Any) -> list[tuple[int, int]]:  # noqa: ANN401  # of transformers
    """Return sizes that a processor of many resolutions cuts into different numbers of tiles."""
    pinpoints: Any = getattr(processor, "image_grid_pinpoints", None) or ()
    by_area = {height * width: (width, height) for height, width in pinpoints}
    return [by_area[area] for area in sorted(by_area)[:2]]


def _pieces(anchor: str, mark: str, images: int) -> tuple[str, str, str]:
    """Return texts with no image, one image and the other images.

    The images are next to letters, digits, spaces, newlines, special tokens and other images.
    """
    others = mark * (images - 2)
    one, more = f"{anchor}\nab {mark}c \n", f"{anchor}{mark}\nd\n{others}1.{anchor}\n"
    return f"{anchor}\ntext\n", one, more


def expand_text(
    call: ProcessorCall, text: str, images: Sequence[Image], *, earlier: int
) -> tuple[int, ...]:
    """Return the ids of a text whose images follow `earlier` others.

    Small stand-ins replace the earlier images, and their ids are removed from the result.

    Raises:
        ImageError: An image cannot be processed.
        TemplateError: The ids of the stand-ins change with the text after them.
    """
    if not earlier:
        return call.text(text, images).ids
    stand_ins = [_probe(*_SIZES[0])] * earlier
    head = call.markup * earlier
    before = call.text(head, stand_ins).ids
    both = call.text(head + text, [*stand_ins, *images]).ids
    if both[: len(before)] != before:
        raise TemplateError(
            f"{call.family} writes {earlier} earlier images differently before this message"
        )
    return both[len(before) :]


def _stands_alone(template: ChatTemplate, syntax: ImageSyntax, images: Sequence[Processed]) -> bool:
    """Return whether the tokens of an image can never merge with adjacent text."""
    ids = {identity for one in images for identity in (one.ids[0], one.ids[-1])}
    if ids == {syntax.placeholder_id}:
        return True
    decoder: Any = getattr(template.tokenizer, "added_tokens_decoder", None) or {}
    tokens = [decoder.get(identity) for identity in (*ids, syntax.placeholder_id)]
    return all(
        token is not None and not (token.lstrip or token.rstrip or token.single_word)
        for token in tokens
    )


def _probe(width: int, height: int) -> Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.from_array(pixels)
