"""The result of a call, as text and images for the model."""

import base64
import binascii
import json
from typing import Any, Final

from envkit.errors import ImageError
from envkit.images import Image
from envkit.toolset.result import MAX_IMAGES

_LISTED: Final = 1000
"""Blocks of a result that are read; the note counts the others."""


class ToolCallError(Exception):
    """A call failed by the tool's or the policy's doing, which the model reads."""


class LethalCallError(ToolCallError):
    """A call ended two servers, one after the other."""


def read_result(result: Any) -> list[str | Image]:  # noqa: ANN401  # the SDK's CallToolResult
    """Return the parts of a result in order.

    Text stays text. Images are decoded; what cannot be shown becomes a note in brackets. Structured
    content is shown only if there is no other.

    Raises:
        ToolCallError: The result says that the call failed.
    """
    blocks: list[Any] = list(result.content)
    parts: list[str | Image] = []
    images = 0
    for block in blocks[:_LISTED]:
        if _is_image(block):  # counted before it is decoded, which takes time and memory
            images += 1
            if images > MAX_IMAGES:
                continue
        parts.append(_part(block))
    if images > MAX_IMAGES:
        parts.append(f"[{images - MAX_IMAGES} more images were left out]")
    if len(blocks) > _LISTED:
        parts.append(f"[{len(blocks) - _LISTED} more parts were left out]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    if result.is_error:
        text = "\n".join(part for part in parts if isinstance(part, str))
        raise ToolCallError(text or "the tool reports an error without a text")
    return parts


def _is_image(block: Any) -> bool:  # noqa: ANN401  # a content block of the SDK
    resource = block.resource if block.type == "resource" else None
    if resource is None or isinstance(getattr(resource, "text", None), str):
        return block.type == "image"
    return str(resource.mime_type or "").startswith("image/")


def _part(block: Any) -> str | Image:  # noqa: ANN401  # a content block of the SDK
    kind = str(block.type)
    if kind == "text":
        return str(block.text)
    if kind == "image":
        return _image(block.data, block.mime_type)
    if kind == "audio":
        return f"[audio of type {block.mime_type}, not shown]"
    if kind == "resource_link":
        return f"[resource {block.uri}: {block.title or block.name}]"
    if kind == "resource":
        return _resource(block.resource)
    return f"[content of type {kind}, not shown]"


def _resource(resource: Any) -> str | Image:  # noqa: ANN401  # text or binary contents
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return text
    kind = str(resource.mime_type or "")
    if kind.startswith("image/"):
        return _image(resource.blob, kind)
    return f"[resource {resource.uri} of type {kind or 'unknown'}, not shown]"


def _image(data: str, kind: str) -> str | Image:
    try:
        image = Image.from_bytes(base64.b64decode(data, validate=True))
        _ = image.sha256  # decodes it
    except (binascii.Error, ValueError, ImageError):
        return f"[image of type {kind}, which cannot be read]"
    return image
