"""Image placeholders: how a template writes them, and how they expand to image tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from envkit.errors import TemplateError
from envkit.tokens.delta import DeltaRenderer
from envkit.tokens.rules import ImageSyntax, RoleRule
from envkit.tokens.template import ChatTemplate, PlainMessage

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


def find_image_syntax(
    renderer: DeltaRenderer,
    user: RoleRule | None,
    placeholder_id: int | None,
    notes: list[str],
) -> tuple[ImageSyntax | None, tuple[str, ...]]:
    """Return the placeholder, or None if the template writes none, and the roles that render it.

    Args:
        renderer: Renders the probes.
        user: The rule of user observations, to detect whether images are numbered.
        placeholder_id: The image token of the processor or tokenizer, if it names one.
        notes: Receives the reasons of rejected probes.
    """
    template, writer = renderer.template, renderer.writer
    text = {"type": "text", "text": "Oo0bs"}
    picture = [{"type": "image"}, text]

    def count(role: str, images: int) -> dict[int, int]:
        content = [{"type": "image"}] * images + [text]
        messages: list[PlainMessage] = [{"role": role, "content": content}]
        if role != "user":
            messages.insert(0, writer.say("user", "u"))
        if role == "tool":
            messages[-1] |= {"name": "f", "tool_call_id": "call00000"}
            messages.insert(1, writer.say("assistant", "w"))
        try:
            ids = template.encode(template.render(messages))
        except TemplateError as error:
            notes.append(f"an image in a {role} message: {error}")
            return {}
        return {identity: ids.count(identity) for identity in set(ids) & set(template.added)}

    none, one, two = (count("user", images) for images in (0, 1, 2))
    candidates = [
        identity
        for identity in two
        if [counts.get(identity, 0) - none.get(identity, 0) for counts in (one, two)] == [1, 2]
    ]
    chosen = _choose(template, candidates, placeholder_id)
    if chosen is None:
        if candidates:
            names = [template.added[identity] for identity in candidates]
            notes.append(f"images: none of {names} is a known placeholder; pass the processor")
        return None, ()
    roles = ["user"]
    if count("tool", 1).get(chosen, 0) - count("tool", 0).get(chosen, 0) == 1:
        roles.append("tool")
    syntax = ImageSyntax(
        placeholder=template.added[chosen],
        placeholder_id=chosen,
        markup=_markup(template, template.render([{"role": "user", "content": picture}]), chosen),
        numbered=_is_numbered(renderer, user),
    )
    return syntax, tuple(roles)


def _markup(template: ChatTemplate, text: str, placeholder_id: int) -> str:
    """Return the placeholder in a text, with the added tokens that touch it."""
    tokens = template.specials_in(text)
    first = last = next(i for i, token in enumerate(tokens) if token.identity == placeholder_id)
    while first and tokens[first - 1].end == tokens[first].start:
        first -= 1
    while last + 1 < len(tokens) and tokens[last].end == tokens[last + 1].start:
        last += 1
    return text[tokens[first].start : tokens[last].end]


def _choose(
    template: ChatTemplate, candidates: Sequence[int], placeholder_id: int | None
) -> int | None:
    if placeholder_id in candidates:
        return placeholder_id
    known = [i for i in candidates if template.added[i] in KNOWN_PLACEHOLDERS]
    return known[0] if len(known) == 1 else None


def _is_numbered(renderer: DeltaRenderer, user: RoleRule | None) -> bool:
    if user is None:
        return False
    picture: PlainMessage = {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": "Oo0bs"}],
    }
    reply = renderer.writer.reply(user.variant, [])

    def tail(first: PlainMessage) -> str | None:
        try:
            text = renderer.template.render([first, reply, picture])
        except TemplateError:
            return None  # for example, roles must alternate: the same on both sides
        return text[renderer.writer.after_reply(text) :]

    return tail(renderer.writer.say("user", "u")) != tail(picture)


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
