"""An incremental PNG encoder: bands of rows, each kept compressed until a row of it changes.

Each band is deflated on its own with `Z_FULL_FLUSH`, so it is byte-aligned and independent of other
bands, and is stored as an IDAT chunk (PNG specification, 10.1 and 11.2.4: a zlib stream may be
split over IDAT chunks anywhere). The checksum of the whole stream is combined from those of the
bands, as in zlib's `adler32_combine` (RFC 1950, section 8.2). The bytes depend only on the pixels,
never on earlier images.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from PIL import Image as PilImage

from envkit.errors import ConfigurationError

BAND_ROWS: Final = 24
_MEMORY_LEVEL: Final = 7
"""zlib's memory level.

A higher one clears a larger table after every band without compressing better.
"""
_GRAB: Final = 65536
"""Bytes read from an image at once: the size of Pillow's own reusable buffer."""
_ADLER_MODULUS: Final = 65521
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_ZLIB_HEADER: Final = b"\x78\x01"
_LAST_BLOCK: Final = b"\x03\x00"
"""An empty final block of deflate."""
_CHANNELS: Final = 3
_NO_FILTER: Final = b"\0"


class BandedPng:
    """Encodes RGB images of one size, re-encoding only what changed."""

    def __init__(self, width: int, height: int, *, level: int = 1) -> None:
        """Choose the size.

        Args:
            width: Size in pixels.
            height: Size in pixels.
            level: zlib level, 1 (fast) to 9 (small).

        Raises:
            ConfigurationError: The size or the level is out of range.
        """
        if min(width, height) < 1 or not 1 <= level <= 9:
            raise ConfigurationError(
                "an image needs at least 1x1 pixels and a level from 1 to 9, "
                f"got {width}x{height} and level {level}"
            )
        self.size: Final = (width, height)
        self._level = level
        line = width * _CHANNELS + 1
        self._lengths = [min(BAND_ROWS, height - top) * line for top in range(0, height, BAND_ROWS)]
        self._chunks: list[bytes | None] = [None] * len(self._lengths)
        self._checksums = [1] * len(self._lengths)
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        self._head = _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", _ZLIB_HEADER)

    def encode(
        self, picture: PilImage.Image, dirty: Iterable[tuple[int, int]] | None = None
    ) -> bytes:
        """Return the image as PNG.

        Args:
            picture: Mode RGB, of the encoder's size.
            dirty: Half-open row ranges that may differ from the previous image; None means all
                rows. Rows outside the image are ignored.

        Raises:
            ConfigurationError: The image has another mode or size.
        """
        if picture.mode != "RGB" or picture.size != self.size:
            raise ConfigurationError(
                f"the image must be RGB of {self.size[0]}x{self.size[1]} pixels, "
                f"got {picture.mode} of {picture.width}x{picture.height}"
            )
        stale = self._stale(dirty)
        if stale:
            # A full flush resets the state, so one object compresses each band as a new one would;
            # creating one takes as long as a band.
            deflater = zlib.compressobj(self._level, zlib.DEFLATED, -15, _MEMORY_LEVEL)
            for band, raw in self._packed(picture, stale):
                deflated = deflater.compress(raw) + deflater.flush(zlib.Z_FULL_FLUSH)
                self._chunks[band] = _chunk(b"IDAT", deflated)
                self._checksums[band] = zlib.adler32(raw)
        checksum = _joined(self._checksums, self._lengths)
        tail = _chunk(b"IDAT", _LAST_BLOCK + struct.pack(">I", checksum)) + _END
        return b"".join((self._head, *(chunk or b"" for chunk in self._chunks), tail))

    def _stale(self, dirty: Iterable[tuple[int, int]] | None) -> list[int]:
        """Return the bands to re-encode, in order."""
        if dirty is None:
            return list(range(len(self._chunks)))
        bands = {band for band, chunk in enumerate(self._chunks) if chunk is None}
        for start, end in dirty:
            start, end = max(0, start), min(self.size[1], end)
            if start < end:
                bands.update(range(start // BAND_ROWS, (end - 1) // BAND_ROWS + 1))
        return sorted(bands)

    def _packed(
        self, picture: PilImage.Image, bands: list[int]
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield the bands with their rows, each after its filter byte.

        Adjacent bands are read from the image at once.
        """
        line = self.size[0] * _CHANNELS + 1
        for first, count in _runs(bands, max(1, _GRAB // (line * BAND_ROWS))):
            top, bottom = first * BAND_ROWS, min(self.size[1], (first + count) * BAND_ROWS)
            rows = picture.crop((0, top, self.size[0], bottom))
            # A stride of one more leaves a zero after each row: the filter byte of the next one.
            packed = memoryview(_NO_FILTER + rows.tobytes("raw", "RGB", line))
            at = 0
            for band in range(first, first + count):
                yield band, packed[at : at + self._lengths[band]]
                at += self._lengths[band]


def _runs(numbers: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of each run of consecutive numbers, split at a maximum length."""
    start = 0
    for index in range(1, len(numbers) + 1):
        length = index - start
        if index == len(numbers) or length == most or numbers[index] != numbers[start] + length:
            yield numbers[start], length
            start = index


def _joined(checksums: list[int], lengths: list[int]) -> int:
    """Combine the Adler-32 of pieces, given their lengths."""
    low, high = 1, 0
    for checksum, length in zip(checksums, lengths, strict=True):
        high += (checksum >> 16) + length * (low - 1)
        low += (checksum & 0xFFFF) - 1
    return high % _ADLER_MODULUS << 16 | low % _ADLER_MODULUS


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


_END: Final = _chunk(b"IEND", b"")
