"""Convert observations of a server to turns: text and images.

OpenEnv has no standard form for images. Servers use data URIs, bare base64 strings, and nested
lists of pixels (its BrowserGym and Atari environments); all are detected anywhere.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np

from envkit.env import Turn
from envkit.errors import EnvFault, FaultKind, ImageError
from envkit.images import Image
from envkit_openenv.protocol import StepAnswer

_LOST: Final = "transport_error"
"""ToolErrorTypes of unreachable tools; the model sees the others."""
_SHOWN: Final = 1000
_MAGIC: Final = ("iVBORw0KGgo", "/9j/", "UklGR", "R0lGOD")
"""Base64 prefixes of PNG, JPEG, WebP and GIF."""
_SHORTEST: Final = 64
"""Minimum characters of base64; a shorter string is text."""
_SMALLEST: Final = 8
"""Minimum pixels per side; a smaller nested list is a table."""


@dataclass(slots=True, kw_only=True)
class Gathered:
    """Results of one reply's actions so far."""

    texts: list[str] = field(default_factory=list[str])
    images: list[Image] = field(default_factory=list[Image])
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    tool_error: str | None = None

    def add(self, text: str, images: Sequence[Image], outcome: StepAnswer) -> None:
        """Add the outcome of an action."""
        self.texts.append(_renumbered(text, len(self.images), len(images)))
        self.images += images
        self.reward += outcome.reward
        self.truncated = outcome.done and outcome.observation.get("truncated") is True
        self.done = outcome.done and not self.truncated


def show_outcome(
    outcome: StepAnswer, *, image_fields: Sequence[str]
) -> tuple[str, list[Image], str | None]:
    """Return text, images and a tool's error from any observation.

    Raises:
        EnvFault: An image cannot be read, or a tool was not reached.
    """
    observation = outcome.observation
    if "tool_name" not in observation or not {"result", "error"} & set(observation):
        text, images = show_observation(observation, image_fields=image_fields)
        return text, images, None
    error: object = observation.get("error")
    if isinstance(error, dict):
        told = cast("dict[str, Any]", error)
        what = f"{observation['tool_name']}: {told.get('message')}"[:_SHOWN]
        if told.get("error_type") == _LOST:
            raise EnvFault(f"the OpenEnv server lost its tool {what}", kind=FaultKind.TRANSIENT)
        return f"Error: {what}", [], what
    return _show_result(observation.get("result"))


def envkit_turn(outcome: StepAnswer) -> Turn:
    """Return the turn that a served environment of envkit returned.

    Raises:
        EnvFault: The observation has other fields.
    """
    observation = outcome.observation
    try:
        images = [decode_image(uri) for uri in observation["images"]]
        return Turn(
            observation["text"],
            images=images,
            role=observation["role"],
            reward=outcome.reward,
            done=bool(observation["terminated"]),
            info=observation["info"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise EnvFault(
            f"the OpenEnv server must answer with an envkit observation: {error!r:.300}",
            kind=FaultKind.PERMANENT,
        ) from error


def _show_result(result: Any) -> tuple[str, list[Image], str | None]:  # noqa: ANN401  # any JSON
    """Return an MCP result: its content's texts and images, or else its JSON."""
    fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    content: object = fields.get("content")
    if not isinstance(content, list):
        shown = {"result": result} if isinstance(result, str | list | dict) else {}
        text, images = show_observation(shown) if shown else (json.dumps(result), [])
        return text, images, None
    texts: list[str] = []
    images = []
    for part in cast("list[Any]", content):
        if not isinstance(part, dict):
            continue
        found = cast("dict[str, Any]", part)
        if found.get("type") == "image" and isinstance(found.get("data"), str):
            images.append(decode_image(found["data"]))
            texts.append(f"[image {len(images)}]")
        elif isinstance(found.get("text"), str):
            texts.append(found["text"])
        else:
            texts.append(json.dumps(found, ensure_ascii=False))
    text = "\n".join(texts)
    return text, images, text[:_SHOWN] if fields.get("is_error") is True else None


def _renumbered(text: str, before: int, count: int) -> str:
    """Renumber image marks to follow those of earlier results."""
    for number in range(count if before else 0, 0, -1):
        text = text.replace(f"[image {number}]", f"[image {number + before}]")
    return text


def show_observation(
    observation: dict[str, Any], *, image_fields: Sequence[str] = ()
) -> tuple[str, list[Image]]:
    """Return an observation as text, and its images in order of their marks.

    An observation with a single text field becomes that text; others have one line per field. Null
    fields are dropped.

    Args:
        observation: JSON data.
        image_fields: Top-level fields that are images in any of the forms, two-dimensional
            lists of grey values included.

    Raises:
        EnvFault: An image cannot be read.
    """
    images: list[Image] = []
    shown: dict[str, Any] = {}
    for key, value in observation.items():
        if key in image_fields and value is not None:
            images.append(_named_image(key, value))
            shown[key] = f"[image {len(images)}]"
        elif (plain := _without_images(value, images)) is not None:
            shown[key] = plain
    if len(shown) == 1 and isinstance(only := next(iter(shown.values())), str):
        return only, images
    return "\n".join(f"{key}: {_line(value)}" for key, value in shown.items()), images


def decode_image(value: str) -> Image:
    """Return the image in a data URI or in base64.

    Raises:
        EnvFault: It cannot be read.
    """
    try:
        if value.startswith("data:"):
            image = Image.from_data_uri(value)
        else:
            image = Image.from_bytes(base64.b64decode(value, validate=True))
        image.pil()  # a broken image is detected here, as the server's failure
    except (ImageError, binascii.Error, ValueError) as error:
        raise _unreadable(str(error)) from error
    return image


def _without_images(value: Any, images: list[Image]) -> Any:  # noqa: ANN401  # any JSON
    """Replace images in a value with marks, and add them to `images`."""
    found: Image | None = None
    if isinstance(value, str):
        if value.startswith("data:image/") or _looks_encoded(value):
            found = decode_image(value)
    elif isinstance(value, list):
        found = _pixels(cast("list[Any]", value), with_grey=False)
    if found is not None:
        images.append(found)
        return f"[image {len(images)}]"
    if isinstance(value, list):
        return [_without_images(entry, images) for entry in cast("list[Any]", value)]
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {key: _without_images(entry, images) for key, entry in entries}
    return value


def _looks_encoded(text: str) -> bool:
    if len(text) < _SHORTEST or not text.startswith(_MAGIC):
        return False
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _pixels(value: list[Any], *, with_grey: bool) -> Image | None:
    """Return the image of a list of rows of pixels; None if it is not one."""
    if len(value) < _SMALLEST or not isinstance(value[0], list):
        return None
    first = cast("list[Any]", value[0])
    if len(first) < _SMALLEST or not (with_grey or isinstance(first[0], list)):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return None
    shapes = (2, 3) if with_grey else (3,)
    if array.ndim not in shapes or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        return None
    if not np.issubdtype(array.dtype, np.integer) or array.min() < 0 or array.max() > 255:
        return None
    pixels = array.astype(np.uint8)
    return Image.from_array(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels)


def _named_image(key: str, value: object) -> Image:
    if isinstance(value, str):
        return decode_image(value)
    found = _pixels(cast("list[Any]", value), with_grey=True) if isinstance(value, list) else None
    if found is None:
        raise _unreadable(f"the field {key!r} holds {value!r:.80}")
    return found


def _line(value: Any) -> str:  # noqa: ANN401  # any JSON
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unreadable(reason: str) -> EnvFault:
    return EnvFault(
        f"the OpenEnv server sent an image that cannot be read: {reason[:300]}",
        kind=FaultKind.PERMANENT,
    )
