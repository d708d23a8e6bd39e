"""Frames between a caller and its worker: JSON that may contain images.

A frame is a head with lengths, a JSON header that lists the images, JSON data, the images as PNG,
and bytes. Data refers to an image by its hash, and its pixels are sent once per episode.
"""

import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.errors import ContractError
from envkit.images import Image

_HEAD: Final = struct.Struct("!4sIQQ")
_MAGIC: Final = b"ekw2"
_IMAGE: Final = "\0image"
"""Key of the JSON object that represents an image."""
MAX_JSON_BYTES: Final = 16 * 1024 * 1024
MAX_BLOB_BYTES: Final = 256 * 1024 * 1024
"""Limit on the bytes of images plus other bytes."""
MAX_IMAGES: Final = 1024
_MAX_FRAME_PIXELS: Final = 256 * 1024 * 1024
"""Limit on the pixels of all images of a frame, because a few bytes can decode to very many."""
_CHUNK: Final = 1024 * 1024
_PLAIN_HEADER: Final[dict[str, Any]] = {"starts_episode": False, "images": []}
"""An empty header: most frames carry no new image."""


class FrameError(Exception):
    """The received bytes are not a frame, or not the expected one."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call or one answer."""

    data: dict[str, Any]
    """JSON data and `Image`s."""
    blob: bytes = b""
    starts_episode: bool = False
    """Whether both sides forget the images of earlier frames."""


class Connection:
    """One side of the socket between a caller and its worker."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._sent = set[str]()
        """Hashes of images that the other side already has."""
        self._received: dict[str, Image] = {}
        self._mentioned: dict[str, Image] = {}
        """Images of the frame that is being written, by hash."""
        self._encoder = json.JSONEncoder(default=self._reference)
        self._decoder = json.JSONDecoder(object_hook=self._resolve)

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            ContractError: It is not JSON data, or exceeds the frame limits; nothing was sent.
            OSError: The other side is gone.
        """
        images = self._mentioned = {}
        try:
            data = self._encoder.encode(frame.data)
        except (TypeError, ValueError, RecursionError) as error:
            raise ContractError(
                "tasks, info and messages of an isolated environment must be JSON data and images: "
                f"{type(error).__name__}: {error}"
            ) from error
        known = set[str]() if frame.starts_episode else self._sent
        new = {key: image for key, image in images.items() if key not in known}
        parts = {key: image.encoded(image.file_format) for key, image in new.items()}
        header = ""
        if parts or frame.starts_episode:
            listed = [[key, len(part)] for key, part in parts.items()]
            header = json.dumps({"starts_episode": frame.starts_episode, "images": listed})
        text = f"{header}\n{data}".encode("ascii")
        lengths = len(text), sum(map(len, parts.values())), len(frame.blob)
        if lengths[0] > MAX_JSON_BYTES or max(lengths[1:]) > MAX_BLOB_BYTES:
            raise ContractError(
                f"a call of an isolated environment may carry {MAX_JSON_BYTES} bytes of JSON and "
                f"{MAX_BLOB_BYTES} of images or state, got {lengths}"
            )
        if len(parts) > MAX_IMAGES:
            raise ContractError(
                f"one call of an isolated environment may carry {MAX_IMAGES} new images, "
                f"got {len(parts)}"
            )
        if frame.starts_episode:
            self._forget()
        self._sent.update(parts)
        self._channel.sendall(_HEAD.pack(_MAGIC, *lengths) + text)
        for part in filter(None, (*parts.values(), frame.blob)):
            self._channel.sendall(part)

    def receive(self, read: Callable[[int], bytes]) -> Frame:
        """Read a frame; `read(n)` returns 1 to n bytes.

        Raises:
            FrameError: It is malformed or too large, or has an image that cannot be decoded or does
                not match its announced hash.
        """
        magic, *lengths = _HEAD.unpack(_read_exactly(read, _HEAD.size))
        if magic != _MAGIC or lengths[0] > MAX_JSON_BYTES or max(lengths[1:]) > MAX_BLOB_BYTES:
            raise FrameError(f"a head of {magic!r} and {lengths} bytes")
        text, pixels, blob = (bytes(_read_exactly(read, length)) for length in lengths)
        header, _, body = text.partition(b"\n")
        try:
            told = json.loads(header) if header else _PLAIN_HEADER
            if told["starts_episode"]:
                self._forget()
            self._take_images(told["images"], pixels)
            data: object = self._decoder.decode(body.decode())
        except (TypeError, ValueError, LookupError, RecursionError) as error:
            raise FrameError(f"not a frame: {error!r:.200}") from error
        if not isinstance(data, dict):
            raise FrameError(f"not a JSON object: {data!r:.80}")
        return Frame(cast("dict[str, Any]", data), blob)

    def _take_images(self, listed: list[Any], data: bytes) -> None:
        if len(listed) > MAX_IMAGES:
            raise FrameError(f"{len(listed)} images, the limit is {MAX_IMAGES}")
        start = pixels = 0
        for digest, length in listed:
            if type(length) is not int or length < 1:
                raise FrameError(f"an image of {length!r:.40} bytes")
            image = Image.from_bytes(data[start : start + length])
            start += length
            pixels += image.size[0] * image.size[1]
            if pixels > _MAX_FRAME_PIXELS:
                raise FrameError(f"images of over {_MAX_FRAME_PIXELS} pixels")
            if image.sha256 != digest:
                raise FrameError(f"an image of sha256 {image.sha256}, announced as {digest!r:.80}")
            self._received[digest] = image
        if start != len(data):
            raise FrameError(f"{len(data)} bytes for images of {start}")

    def _reference(self, value: object) -> dict[str, str]:
        """Return the JSON object that represents an image."""
        if not isinstance(value, Image):
            raise TypeError(f"got an object of type {type(value).__name__}")
        self._mentioned[value.sha256] = value
        return {_IMAGE: value.sha256}

    def _resolve(self, value: dict[str, Any]) -> object:
        """Return a JSON object, or the image that it represents."""
        return self._received[value[_IMAGE]] if _IMAGE in value else value

    def _forget(self) -> None:
        self._sent.clear()
        self._received.clear()


def _read_exactly(read: Callable[[int], bytes], length: int) -> bytearray:
    found = bytearray()
    while len(found) < length:
        found += read(min(length - len(found), _CHUNK))
    return found
