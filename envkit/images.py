"""Immutable, content-addressed images.

An `Image` is identified by the SHA-256 of its mode, size and pixels. It keeps its original bytes in
their original format and is never copied: `copy.deepcopy` returns the same object, so a group of G
trajectories that share an image share its bytes. A pickle contains its identity and these bytes;
the receiver neither decodes nor hashes until it reads pixels.

A lossy file (JPEG, WebP) gives these pixels with this process's decoder. Another program's decoder
may silently give different ones, so code that sends images to other programs uses PNG.

Decoded pixels are cached. The process keeps the most recently decoded ones, up to
`PIXEL_CACHE_BYTES`, and an image decodes its bytes again if its pixels were evicted. A drawn image
keeps its pixels until it is encoded as PNG.
"""

import base64
import hashlib
import io
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, final
from weakref import ref

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

from envkit import image_files
from envkit.errors import ImageError

_FORMATS: Final = ("jpeg", "png", "webp")
PIXEL_CACHE_BYTES: Final = 256 * 1024 * 1024
"""Maximum bytes of decoded pixels per process, excluding those in use: two hundred screenshots of
672x448, so hundreds of episodes can start at once without decoding any image twice."""
_OVERHEAD_BYTES: Final = 4096
"""Overhead in bytes per decoded image, in addition to its pixels."""


class _RecentPixels:
    """The images with pixels in memory, in decoding order.

    Deleting an image frees its pixels, but they still count until they are the oldest.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reset()

    def reset(self) -> None:
        """Start empty, with a free lock."""
        self._lock = threading.RLock()
        self._images: deque[tuple[ref[Image], int]] = deque()
        self._bytes = 0

    def add(self, image: "Image", picture: PilImage.Image) -> "list[Image]":
        """Add a newly decoded image; return the oldest ones beyond the limit."""
        pixels = picture.width * picture.height * (1 if picture.mode == "L" else 4)
        beyond: list[Image] = []
        with self._lock:
            self._images.append((ref(image), pixels + _OVERHEAD_BYTES))
            self._bytes += pixels + _OVERHEAD_BYTES
            while self._bytes > self.limit and len(self._images) > 1:
                oldest, released = self._images.popleft()
                self._bytes -= released
                if (found := oldest()) is not None:
                    beyond.append(found)
        return beyond


_recent: Final = _RecentPixels(PIXEL_CACHE_BYTES)
if hasattr(os, "register_at_fork"):  # another thread may hold the lock while this one forks
    os.register_at_fork(after_in_child=_recent.reset)


@final
class Image:
    """One image. Two images are equal if and only if mode, size and pixels are equal.

    Build one with `from_pil`, `from_array`, `from_bytes`, `from_data_uri`, `open` or `deferred`.
    """

    __slots__ = (
        "__weakref__",
        "_decoded",
        "_encoded",
        "_format",
        "_is_unverified",
        "_lock",
        "_sha256",
        "_shape",
        "_source",
    )

    def __init__(self, source: bytes | Callable[[], bytes] | None) -> None:
        if isinstance(source, PilImage.Image):
            raise ImageError("Image(...) takes no Pillow image; use Image.from_pil(image)")
        self._source = source  # None for a drawn image that has not been encoded yet
        self._format: str | None = None  # of the source, if it holds exactly these pixels
        self._is_unverified = False  # whether the identity was given and not verified yet
        self._decoded: PilImage.Image | None = None
        self._shape: tuple[str, tuple[int, int]] | None = None
        self._sha256: str | None = None
        self._encoded: dict[str, bytes] = {}
        self._lock = threading.RLock()

    @classmethod
    def from_pil(cls, picture: PilImage.Image, *, png: bytes | None = None) -> "Image":
        """Build from a Pillow image; it is copied, so later edits have no effect.

        Args:
            picture: An image in any mode except I and F, whose values have no fixed range.
            png: The image as PNG, if already encoded. It is not verified: bytes with other pixels
                would be sent under this image's identity.

        Raises:
            ImageError: The image is empty or too large, or its mode cannot be converted.
        """
        image_files.check_size(picture.size)
        image, drawn = cls(png), image_files.normalized(picture).copy()
        drawn.info = {}  # metadata must not travel in the PNG
        image._decoded, image._shape = drawn, (drawn.mode, drawn.size)
        if png is not None:
            image._format = "png"
            image._track(drawn)
        return image

    @classmethod
    def from_array(cls, array: NDArray[np.uint8]) -> "Image":
        """Build from an array of shape (height, width) or (height, width, 3 or 4), dtype uint8."""
        if array.dtype != np.uint8 or not (array.ndim == 2 or array.shape[2:] in ((3,), (4,))):
            raise ImageError(
                "an image array must be uint8 of shape (height, width[, channels]), "
                f"got {array.dtype} of shape {array.shape}"
            )
        return cls.from_pil(PilImage.fromarray(array))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Image":
        """Build from a PNG, JPEG, WebP, GIF or BMP file, decoded on first use.

        Raises:
            ImageError: There are more than `envkit.image_files.MAX_BYTES` bytes.
        """
        image_files.check_length(len(data))
        return cls(bytes(data))

    @classmethod
    def from_data_uri(cls, uri: str) -> "Image":
        """Build from a base64 data URI; its MIME type is ignored in favour of the bytes."""
        _, separator, payload = uri.partition("base64,")
        if not separator:
            raise ImageError(f"a data URI must contain 'base64,', got {uri[:40]!r}...")
        image_files.check_length(len(payload) // 4 * 3 - payload.count("=", -2))
        try:
            return cls.from_bytes(base64.b64decode(payload, validate=True))
        except ValueError as error:
            raise ImageError(f"the data URI is not valid base64: {error}") from error

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Image":
        """Read a file.

        Raises:
            ImageError: The file cannot be read, or is too large.
        """
        try:
            return cls.from_bytes(image_files.read_image_file(path))
        except OSError as error:
            raise ImageError(f"cannot read the image file {str(path)!r}: {error}") from error

    @classmethod
    def deferred(cls, read: Callable[[], bytes], *, sha256: str) -> "Image":
        """Build from encoded bytes read on first use and their expected identity.

        The identity is available without reading. Decoding raises an ImageError if the pixels have
        another identity.
        """
        image = cls(read)
        image._sha256, image._is_unverified = sha256, True
        return image

    @classmethod
    def _received(
        cls, sha256: str, data: bytes, shape: tuple[str, tuple[int, int]], image_format: str
    ) -> "Image":
        """Rebuild a pickled image; its identity is verified when its pixels are first read."""
        image = cls(data)
        image._sha256, image._is_unverified = sha256, True
        image._shape, image._format = shape, image_format
        return image

    def pil(self) -> PilImage.Image:
        """Return the decoded image, mode L or RGB. It is shared: copy before drawing on it.

        A reference to it keeps its pixels in memory; calling again later is cheap.

        Raises:
            ImageError: The bytes are not an image, or not the expected one.
        """
        picture = self._decoded
        if picture is None:
            with self._lock:
                picture = self._decoded
                if picture is None:
                    picture = self._decode()
                    self._track(picture)
        return picture

    def check(self) -> None:
        """Read and decode the image without keeping its pixels.

        Raises:
            ImageError: As for `pil`.
        """
        with self._lock:
            if self._decoded is None:
                self._decode()

    def _track(self, picture: PilImage.Image) -> None:
        self._decoded = picture
        for image in _recent.add(self, picture):
            image._decoded = None

    def _decode(self) -> PilImage.Image:
        source = self._source
        data = source() if callable(source) else source
        assert data is not None  # a drawn image has its pixels until it has bytes
        found = image_files.decode_image(data)
        # A file beside a run may have been changed since its hash was recorded.
        if self._is_unverified and self._sha256 != (identity := _identity(found.picture)):
            raise ImageError(
                f"the image must have sha256 {self._sha256}, got pixels of {identity}; "
                "its file was changed, or it is lossy and was decoded differently elsewhere"
            )
        self._is_unverified = False
        self._format = found.image_format if found.exact is not None else None
        self._source = found.exact or data
        self._shape = (found.picture.mode, found.picture.size)
        return found.picture

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self._known_shape()[1]

    @property
    def mode(self) -> str:
        """Pixel mode: "L" (grey) or "RGB"."""
        return self._known_shape()[0]

    def _known_shape(self) -> tuple[str, tuple[int, int]]:
        if self._shape is None:
            picture = self.pil()
            return picture.mode, picture.size
        return self._shape

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of mode, size and pixels: the image's identity."""
        with self._lock:
            if self._sha256 is None:
                self._sha256 = _identity(self.pil())
            return self._sha256

    def array(self) -> NDArray[np.uint8]:
        """Return the pixels as a read-only array of shape (height, width[, 3])."""
        pixels: NDArray[np.uint8] = np.asarray(self.pil())
        pixels.flags.writeable = False
        return pixels

    @property
    def file_format(self) -> str:
        """The format available without encoding: "jpeg" or "webp" if the original, else "png"."""
        if self._format is None and self._shape is None:
            self.pil()
        return self._format or "png"

    def encoded(self, image_format: str = "png") -> bytes:
        """Return the image in a file format ("png", "jpeg", "webp"), cached per format.

        Original bytes in this format are returned without metadata if they decode to exactly these
        pixels; a transparent PNG is re-encoded. PNG and WebP encoding is lossless.

        Raises:
            ImageError: The format is not supported, or the image's bytes are damaged.
        """
        name = image_format.lower()
        with self._lock:
            if name not in self._encoded:
                self._encoded[name] = self._encode(name)
            return self._encoded[name]

    def _encode(self, name: str) -> bytes:
        if (
            self._format is None
        ):  # damaged bytes must not be sent just because they start like a PNG
            self.pil()
        if name == self._format and isinstance(self._source, bytes):
            return self._source
        picture = self.pil()
        if name not in _FORMATS:
            raise ImageError(f"an image format must be one of {_FORMATS}, got {name!r}")
        if name != "png":
            buffer, options = io.BytesIO(), {"lossless": True} if name == "webp" else {}
            picture.save(buffer, format=name.upper(), **options)
            return buffer.getvalue()
        data = image_files.png_of(picture)
        is_drawn = self._source is None
        if is_drawn or self._format is None:  # the pixels can now be decoded from it
            self._source, self._format = data, name
        if is_drawn:
            self._track(picture)
        return data

    def is_ready(self) -> bool:
        """Whether size, identity and file are available without processing pixels."""
        if self._shape is None or self._sha256 is None:
            return False
        return self.file_format in (self._format, *self._encoded)

    def png_bytes(self) -> bytes:
        """Return the image as PNG."""
        return self.encoded("png")

    def data_uri(self, image_format: str = "png") -> str:
        """Return the image as a base64 data URI."""
        return self.data_uri_bytes(image_format).decode("ascii")

    def data_uri_bytes(self, image_format: str = "png") -> bytes:
        """Return the data URI as bytes, built once per format."""
        key = f"uri:{image_format.lower()}"
        with self._lock:
            if key not in self._encoded:
                payload = base64.b64encode(self.encoded(image_format))
                self._encoded[key] = f"data:image/{image_format.lower()};base64,".encode() + payload
            return self._encoded[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and (self is other or self.sha256 == other.sha256)

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __copy__(self) -> "Image":
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> "Image":
        return self

    def __reduce__(self) -> tuple[object, ...]:
        name = self.file_format
        return Image._received, (self.sha256, self.encoded(name), self._known_shape(), name)

    def __repr__(self) -> str:
        if self._shape is None and self._sha256 is not None:
            return f"Image(not read yet, sha256={self._sha256[:12]})"
        if self._shape is None and isinstance(self._source, bytes):
            # An error message may show a damaged image.
            return f"Image({len(self._source)} bytes, not decoded yet)"
        width, height = self.size
        return f"Image({width}x{height} {self.mode}, sha256={self.sha256[:12]})"


def _identity(picture: PilImage.Image) -> str:
    digest = hashlib.sha256(f"{picture.mode}:{picture.width}x{picture.height}:".encode())
    digest.update(picture.tobytes())
    return digest.hexdigest()
