"""Image placeholders: their names, and how they expand to image tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from envkit.errors import TemplateError
from envkit.tokens.rules import ImageSyntax
from envkit.tokens.template import ChatTemplate

KNOWN_PLACEHOLDERS: Final = (
    "<|image_pad|>",
    "<image>",
    "<start_of_image>",
    "<|image|>",
    "[IMG]",
    "<image_soft_token>",
    "<|image_soft_token|>",
    "<IMG_CONTEXT>",
    "<|media_pad|>",
)
OTHER_MEDIA: Final = (
    "<|video_pad|>",
    "<video>",
    "<|video|>",
    "<|audio_pad|>",
    "<|audio|>",
    "<audio_soft_token>",
    "<image_soft_token>",
    "<|patch|>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "<IMG_ATOM>",
)
"""Other media tokens, which must never be sampled either."""


def media_tokens(template: ChatTemplate, syntax: ImageSyntax | None) -> dict[str, int]:
    """Return the placeholder tokens of a template that renders images; else none."""
    if syntax is None:
        return {}
    names = {name: identity for identity, name in template.added.items()}
    found = {syntax.placeholder: syntax.placeholder_id}
    for name in (*KNOWN_PLACEHOLDERS, *OTHER_MEDIA):
        if name in names:
            found[name] = names[name]
    return found


def repeat_each(ids: Sequence[int], identity: int, counts: Sequence[int]) -> list[int]:
    """Return ids with occurrence n of `identity` repeated `counts[n]` times.

    Raises:
        ValueError: `identity` occurs less often than there are counts.
    """
    return replace_each(ids, identity, [(identity,) * count for count in counts])


def replace_each(
    ids: Sequence[int], identity: int, replacements: Sequence[Sequence[int]]
) -> list[int]:
    """Return ids with occurrence n of `identity` replaced by `replacements[n]`.

    Raises:
        ValueError: `identity` occurs less often than there are replacements.
    """
    result: list[int] = []
    position = 0
    for replacement in replacements:  # as many steps as images, not as ids
        found = ids.index(identity, position)
        result += ids[position:found]
        result += replacement
        position = found + 1
    result += ids[position:]
    return result


def check_count(
    wire_ids: Sequence[int], media: Mapping[str, int], syntax: ImageSyntax, images: int
) -> None:
    """Reject ids whose placeholders do not match the images one to one.

    Raises:
        TemplateError: The template dropped or doubled an image, or text produced a placeholder.
    """
    found = {name: wire_ids.count(identity) for name, identity in media.items()}
    placeholders = found.pop(syntax.placeholder)
    others = sorted(name for name, number in found.items() if number)
    if placeholders != images or others:
        raise TemplateError(
            f"the chat template wrote {placeholders} image placeholders for {images} images"
            + (f", and also {others}" if others else "")
        )


def image_token_id(*owners: Any) -> int | None:  # noqa: ANN401  # processors and tokenizers
    """Return the first image token id that a processor or tokenizer names, or None."""
    for owner in owners:
        identity: Any = getattr(owner, "image_token_id", None)
        if isinstance(identity, int):
            return identity
    return None
