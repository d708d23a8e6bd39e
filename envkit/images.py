"""Immutable, content-addressed images.

An `Image` is identified by the SHA-256 of its mode, size and pixels, is decoded at most once and
encoded at most once per format. It is never copied: `copy.deepcopy` returns the same object, so a
group of G trajectories that share a picture shares its bytes.
"""

import base64
import hashlib
import io
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

from envkit.errors import ImageError

_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_FORMATS: Final = ("jpeg", "png", "webp")
_DECODER_ERRORS: Final = (
    OSError,  # with UnidentifiedImageError and truncated files
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    OverflowError,
    MemoryError,
    NotImplementedError,
    struct.error,
    zlib.error,
    PilImage.DecompressionBombError,
    PilImage.DecompressionBombWarning,
)
"""What Pillow's decoders raise on damaged bytes."""
MAX_PIXELS: Final = 64 * 1024 * 1024
"""Largest accepted width * height: a decoded RGB picture of 192 MiB."""


def _normalise(picture: PilImage.Image) -> PilImage.Image:
    """Return the picture as L or RGB; transparency is composited onto white.

    A bare convert("RGB") turns transparent diagrams black.
    """
    if picture.mode in ("L", "RGB") and "transparency" not in picture.info:
        return picture
    if picture.mode.startswith("I;16"):  # convert() would clip 16-bit grey to white
        return PilImage.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        white = PilImage.new("RGBA", rgba.size, "white")
        return PilImage.alpha_composite(white, rgba).convert("RGB")
    return picture.convert("RGB")


@final
class Image:
    """One picture; equal to another exactly when mode, size and pixels are equal.

    Build one with `from_pil`, `from_array`, `from_bytes`, `from_data_uri`, `open` or `deferred`.
    """

    __slots__ = ("__weakref__", "_decoded", "_encoded", "_exact", "_lock", "_sha256", "_source")

    def __init__(self, source: PilImage.Image | bytes | Callable[[], bytes]) -> None:
        self._source = source
        self._decoded: PilImage.Image | None = None
        self._exact = False  # whether the source bytes decode to exactly these pixels
        self._sha256: str | None = None
        self._encoded: dict[str, bytes] = {}
        self._lock = threading.RLock()

    @classmethod
    def from_pil(cls, picture: PilImage.Image) -> "Image":
        """Take a Pillow picture; it is copied, so later edits do not reach the image."""
        _check_size(picture.size)
        return cls(_normalise(picture).copy())

    @classmethod
    def from_array(cls, array: NDArray[np.uint8]) -> "Image":
        """Take an array of shape (height, width) or (height, width, 3 or 4), dtype uint8."""
        if array.dtype != np.uint8 or array.ndim not in (2, 3):
            raise ImageError(
                "an image array must be uint8 of shape (height, width[, channels]), "
                f"got {array.dtype} of shape {array.shape}"
            )
        return cls.from_pil(PilImage.fromarray(array))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Image":
        """Take encoded bytes (PNG, JPEG, WebP, ...); they are decoded on first use."""
        return cls(bytes(data))

    @classmethod
    def from_data_uri(cls, uri: str) -> "Image":
        """Take a base64 data URI; its mime type is ignored, the bytes say what they are."""
        _, separator, payload = uri.partition("base64,")
        if not separator:
            raise ImageError(f"a data URI must contain 'base64,', got {uri[:40]!r}...")
        try:
            return cls.from_bytes(base64.b64decode(payload, validate=True))
        except ValueError as error:
            raise ImageError(f"the data URI is not valid base64: {error}") from error

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Image":
        """Read a file.

        Raises:
            ImageError: It cannot be read.
        """
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except OSError as error:
            raise ImageError(f"cannot read the image file {str(path)!r}: {error}") from error

    @classmethod
    def deferred(cls, read: Callable[[], bytes], *, sha256: str) -> "Image":
        """Take encoded bytes that are read on first use, and the identity that they must have.

        The identity is known without reading; pixels that turn out to have another one are refused
        with an ImageError when they are decoded.
        """
        image = cls(read)
        image._sha256 = sha256
        return image

    def pil(self) -> PilImage.Image:
        """Return the decoded picture, mode L or RGB. It is shared: copy before drawing on it."""
        with self._lock:
            if self._decoded is None:
                self._decoded = self._decode()
            return self._decoded

    def _decode(self) -> PilImage.Image:
        if isinstance(self._source, PilImage.Image):
            return self._source
        if isinstance(self._source, bytes):
            return self._decode_bytes(self._source)
        data = self._source()
        picture = self._decode_bytes(data)
        if self._sha256 != (found := _identity(picture)):
            raise ImageError(
                f"the image must have sha256 {self._sha256}, got pixels of {found}; "
                "its file was changed"
            )
        self._source = data
        return picture

    def _decode_bytes(self, data: bytes) -> PilImage.Image:
        try:
            with PilImage.open(io.BytesIO(data)) as opened:
                _check_size(opened.size)
                opened.load()
                picture = _normalise(opened)
                self._exact = picture is opened
                return picture  # loaded, so that it stays valid when the bytes are closed
        except ImageError:
            raise
        except _DECODER_ERRORS as error:
            raise ImageError(f"these {len(data)} bytes are no readable image: {error}") from error

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.pil().size

    @property
    def mode(self) -> str:
        """Pixel mode: "L" (grey) or "RGB"."""
        return self.pil().mode

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

    def encoded(self, image_format: str = "png") -> bytes:
        """Return the picture in a file format ("png", "jpeg", "webp"), encoded once and kept.

        PNG and WebP are lossless here. Bytes that came in as PNG are returned as they came when
        they decode to exactly these pixels; a transparent PNG is written anew without it.

        Raises:
            ImageError: The format is another one, or the bytes behind the image are broken.
        """
        name = image_format.lower()
        with self._lock:
            if name not in self._encoded:
                self._encoded[name] = self._encode(name)
            return self._encoded[name]

    def _encode(self, name: str) -> bytes:
        self.pil()  # broken bytes must not travel just because they start like a PNG
        if (
            name == "png"
            and self._exact
            and isinstance(self._source, bytes)
            and self._source.startswith(_PNG_SIGNATURE)
        ):
            return self._source
        if name not in _FORMATS:
            raise ImageError(f"an image format must be one of {_FORMATS}, got {name!r}")
        options: dict[str, Any] = {}
        if name == "png":
            options["compress_level"] = 3
        elif name == "webp":
            options["lossless"] = True
        buffer = io.BytesIO()
        self.pil().save(buffer, format=name.upper(), **options)
        return buffer.getvalue()

    def is_ready(self) -> bool:
        """Whether pixels, identity and PNG bytes can be had without any work on pixels."""
        if self._decoded is None or self._sha256 is None:
            return False
        return "png" in self._encoded

    def png_bytes(self) -> bytes:
        """Return the picture as PNG."""
        return self.encoded("png")

    def data_uri(self, image_format: str = "png") -> str:
        """Return the picture as a base64 data URI, built once per format."""
        key = f"uri:{image_format.lower()}"
        with self._lock:
            if key not in self._encoded:
                payload = base64.b64encode(self.encoded(image_format))
                self._encoded[key] = f"data:image/{image_format.lower()};base64,".encode() + payload
            return self._encoded[key].decode("ascii")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and (self is other or self.sha256 == other.sha256)

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __copy__(self) -> "Image":
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> "Image":
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return Image.from_bytes, (self.png_bytes(),)

    def __repr__(self) -> str:
        if self._decoded is None and self._sha256 is not None:
            return f"Image(not read yet, sha256={self._sha256[:12]})"
        if self._decoded is None and isinstance(self._source, bytes):
            # An error message may show an image that turns out to be broken.
            return f"Image({len(self._source)} bytes, not decoded yet)"
        width, height = self.size
        return f"Image({width}x{height} {self.mode}, sha256={self.sha256[:12]})"


def _identity(picture: PilImage.Image) -> str:
    digest = hashlib.sha256(f"{picture.mode}:{picture.width}x{picture.height}:".encode())
    digest.update(picture.tobytes())
    return digest.hexdigest()


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if width <= 0 or height <= 0 or width * height > MAX_PIXELS:
        raise ImageError(
            f"an image must have 1 to {MAX_PIXELS} pixels, got {width}x{height}; resize it first"
        )
