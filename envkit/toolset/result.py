"""The result of a call: text and images for the model, and a status for metrics."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from PIL.Image import Image as PilImage

from envkit.errors import ContractError
from envkit.images import Image
from envkit.toolcalls.tolerant_json import scrub

MAX_IMAGES: Final = 8
"""Maximum images per result; more would quickly fill a model's context."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


class CallStatus(StrEnum):
    """How a call ended."""

    OK = "ok"
    """The tool returned."""
    INVALID = "invalid"
    """The model's mistake: an unknown tool or arguments that violate the schema. Nothing ran."""
    CRASHED = "crashed"
    """The tool raised, or returned a value that cannot be shown."""
    TIMEOUT = "timeout"
    """The tool did not return in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The answer to one call."""

    name: str
    """The tool's name as the model wrote it, at most 64 characters."""
    text: str
    images: tuple[Image, ...] = ()
    status: CallStatus = CallStatus.OK


def shown(value: object) -> tuple[str, tuple[Image, ...]]:
    """Convert a tool's return value to text and decoded images.

    Text stays as it is, an image (envkit's or Pillow's) is shown, and a list or tuple that contains
    images becomes text and images in order. Anything else is written as JSON.

    Raises:
        ContractError: The value has another type, or too many images.
        ImageError: An image's bytes cannot be decoded.
    """
    parts = _parts(value)
    images = tuple(_image(part) for part in parts if isinstance(part, Image | PilImage))
    if len(images) > MAX_IMAGES:
        raise ContractError(
            f"a tool may return at most {MAX_IMAGES} images at once, got {len(images)}"
        )
    for image in images:
        # Decode here, on the tool's thread: it is slow on the event loop.
        _ = image.sha256, image.encoded(image.file_format)
    texts = [_text(part) for part in parts if not isinstance(part, Image | PilImage)]
    return "\n".join(texts), images


def _parts(value: object) -> Sequence[object]:
    parts = cast(Sequence[object], value) if isinstance(value, list | tuple) else ()
    has_image = any(isinstance(part, Image | PilImage) for part in parts)
    return parts if has_image else (cast(object, value),)


def _image(part: Image | PilImage) -> Image:
    return part if isinstance(part, Image) else Image.from_pil(part)


def _text(part: object) -> str:
    if isinstance(part, str):
        return part
    if part is None:
        return "Done."
    try:
        return json.dumps(part, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(
            "a tool must return text, envkit.Image, JSON data or a list of text and images, "
            f"got {type(part).__name__}"
        ) from error


def plain(text: str, limit: int) -> str:
    """Return external text, truncated, with lone surrogates replaced.

    The codec handles control tokens, since it knows the model's.
    """
    if len(text) > limit:
        text = f"{text[:limit]}\n[{len(text) - limit} more characters were left out]"
    return text if text.isascii() else scrub(text)


def sentence_of(error: BaseException) -> str:
    """Describe an exception without memory addresses, which differ between runs."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # a foreign exception's own __str__ may raise
        text = ""
    return _ADDRESS.sub("", f"{type(error).__name__}: {text}" if text else type(error).__name__)
