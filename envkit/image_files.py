"""Decoding of image files, with limits on format and size.

Bytes come from models, servers, datasets and run directories, so they are treated as untrusted:

- Only the formats in `FORMATS` are decoded. Pillow knows about forty others, some of which start an
  external program (EPS) or are rarely tested.
- The length of the file and the size that its header declares are checked before any pixels are
  allocated.
- Only the first frame of an animation is decoded. The ancillary chunks of a PNG (text, color
  profiles, animation) are removed before Pillow sees them, because they can expand a thousandfold.
- An orientation tag is applied, so pixels are as a viewer shows them; other metadata is dropped.

Every mode of Pillow becomes what a viewer shows, except I and F: nothing says which of their values
are black and white, so they are refused.
"""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple, cast

import numpy as np
from PIL import Image as PilImage

from envkit.errors import ImageError
from envkit.open_files import open_regular

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Supported formats by Pillow's names."""
_OTHER_NAMES: Final = {"MPO": "JPEG", "DIB": "BMP"}
"""Pillow's names of format variants: a JPEG with more than one image is an MPO."""
MAX_PIXELS: Final = 64 * 1024 * 1024
"""Maximum width * height; Pillow needs up to 256 MiB for that many pixels."""
MAX_BYTES: Final = 5 * MAX_PIXELS
"""Maximum file size in bytes: enough for the PNG of any accepted image, so every image can be
stored and read again."""

_PNG_LEVEL: Final = 1
"""zlib's fastest level."""
_BLOCK_BYTES: Final = 1 << 20
"""Bytes of pixels copied at once: a screenshot, but not a large image."""
_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_PNG_CRITICAL: Final = (b"IDAT", b"IHDR", b"PLTE", b"IEND")
_BAND_PIXELS: Final = 4 * 1024 * 1024
"""How much of a transparent image is composited at once."""
_KEYED: Final = ("1", "L", "P", "RGB")
"""Modes in which `info["transparency"]` may name a transparent value."""
_SEE_THROUGH: Final = ("LA", "La", "PA", "RGBA", "RGBa")
_WITHOUT_RANGE: Final = ("I", "F")
_PREFIX_BYTES: Final = 16
"""How much of a file Pillow's plugins look at to recognize its format."""
_IS_ANCILLARY: Final = 0x20
"""Bit of a PNG chunk's first letter: decoders may ignore the chunk."""
_ORIENTATION: Final = 0x0112
"""EXIF tag that says how a viewer turns the stored pixels."""
_TURNS: Final = {
    2: PilImage.Transpose.FLIP_LEFT_RIGHT,
    3: PilImage.Transpose.ROTATE_180,
    4: PilImage.Transpose.FLIP_TOP_BOTTOM,
    5: PilImage.Transpose.TRANSPOSE,
    6: PilImage.Transpose.ROTATE_270,
    7: PilImage.Transpose.TRANSVERSE,
    8: PilImage.Transpose.ROTATE_90,
}
"""How to apply each value of the tag; 1 and all others change nothing."""
_INTEGER_TYPES: Final = {1: "B", 3: "H", 4: "I"}
"""Types of an EXIF value that is one integer, as `struct` names them."""
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
"""Exceptions that Pillow's decoders raise for damaged bytes."""


class DecodedImage(NamedTuple):
    """The first frame of an image file."""

    picture: PilImage.Image
    """Mode L or RGB, upright, without metadata."""
    image_format: str
    """Format of the file, such as "png"."""
    exact: bytes | None
    """The file without its metadata, if it holds exactly these pixels. None if they were converted,
    such as composited onto white or rotated by an orientation tag, or if removing metadata is not
    supported for its format."""


def decode_image(data: bytes) -> DecodedImage:
    """Decode an image file.

    Raises:
        ImageError: The file is damaged, too large, or in a format that is not in `FORMATS`.
    """
    check_length(len(data))
    exif, depth = b"", 8
    if data.startswith(_PNG_SIGNATURE):
        data, exif = _without_ancillary_chunks(data)
        depth = data[24] if len(data) > 24 else depth
    elif data[8:12] == b"WEBP":
        _check_webp(data)  # Pillow allocates two canvases when it opens one
    try:
        with PilImage.open(io.BytesIO(data), formats=FORMATS) as opened:
            check_size(opened.size)
            opened.load()
            if exif:
                opened.info["exif"] = exif
            image_format = _OTHER_NAMES.get(opened.format or "", opened.format or "").lower()
            picture = normalized(opened, depth=depth)
            exact = _exact(data, image_format) if picture is opened else None
            if picture is opened and image_format != "png":
                picture = opened.copy()  # the opened one keeps a reference to its file or decoder
            picture.info = {}
            return DecodedImage(picture, image_format, exact)
    except PilImage.UnidentifiedImageError as error:
        raise ImageError(
            f"these {len(data)} bytes are not a readable image: a file must be PNG, JPEG, WebP, "
            f"GIF or BMP and undamaged, got {_kind_of(data)} that starts with {data[:12]!r}"
        ) from error
    except ImageError:
        raise
    except _DECODER_ERRORS as error:
        raise ImageError(f"these {len(data)} bytes are not a readable image: {error}") from error


def png_of(picture: PilImage.Image) -> bytes:
    """Return an image of mode L or RGB as PNG with unfiltered rows.

    Drawings have flat areas that compress as well without filters. Trying the five filters on each
    row, as Pillow does, takes two to three times as long and makes photos a tenth smaller.
    """
    width, height = picture.size
    line = width * len(picture.getbands()) + 1  # with the filter byte
    rows = max(1, _BLOCK_BYTES // line)
    deflater = zlib.compressobj(_PNG_LEVEL)
    parts = [deflater.compress(b"\0")]  # the filter byte of the first row
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        band = picture if rows >= height else picture.crop((0, top, width, bottom))
        # A stride of one more leaves a zero after each row: the filter byte of the next one.
        pixels = memoryview(band.tobytes("raw", picture.mode, line))
        parts.append(deflater.compress(pixels[: line * (bottom - top) - (bottom == height)]))
    parts.append(deflater.flush())
    color_type = 0 if picture.mode == "L" else 2
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", b"".join(parts)), (b"IEND", b""))
    return _PNG_SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def read_image_file(path: str | os.PathLike[str]) -> bytes:
    """Read a file, unless it is too large.

    Raises:
        OSError: The file cannot be read.
        ImageError: The file is larger than `MAX_BYTES`.
    """
    with open_regular(Path(path)) as stream:
        check_length(os.fstat(stream.fileno()).st_size)
        data = stream.read(MAX_BYTES + 1)  # it may grow, and files of /proc have no size
    check_length(len(data))
    return data


def check_length(length: int) -> None:
    """Check the length of a file.

    Raises:
        ImageError: The length exceeds `MAX_BYTES`.
    """
    if length > MAX_BYTES:
        raise ImageError(f"an image file must have at most {MAX_BYTES} bytes, got {length}")


def check_size(size: tuple[int, int]) -> None:
    """Check width and height.

    Raises:
        ImageError: A side is 0, or there are more than `MAX_PIXELS` pixels.
    """
    width, height = size
    if width <= 0 or height <= 0 or width * height > MAX_PIXELS:
        raise ImageError(
            f"an image must have 1 to {MAX_PIXELS} pixels, got {width}x{height}; resize it first"
        )


def normalized(picture: PilImage.Image, *, depth: int = 8) -> PilImage.Image:
    """Return the image upright, as L or RGB; transparency is composited onto white.

    An orientation tag is applied as `PIL.ImageOps.exif_transpose` does, which datasets and
    transformers call. A bare convert("RGB") turns transparent diagrams black.

    Args:
        picture: An image in any mode.
        depth: Bits per sample of the PNG that the image was read from.

    Raises:
        ImageError: The values of its mode have no fixed range, or Pillow cannot convert it.
    """
    is_wide = picture.mode.startswith("I;16") or (picture.mode == "I" and depth == 16)
    if picture.mode in _WITHOUT_RANGE and not is_wide:
        raise ImageError(
            f"an image must have values of a fixed range, got mode {picture.mode!r}, whose values "
            "may mean any brightness; scale them to 0..255 and call Image.from_array with uint8"
        )
    turn = _TURNS.get(_orientation(picture.info.get("exif")))
    try:
        flat = _in_high_bytes(picture) if is_wide else _without_transparency(picture, depth)
    except (ValueError, TypeError, ImportError) as error:
        raise ImageError(
            f"an image of mode {picture.mode!r} cannot be converted to RGB: {error}"
        ) from error
    return flat if turn is None else flat.transpose(turn)


def _orientation(exif: object) -> int:
    """Return the orientation that an EXIF block states; 1 if it states none or is damaged.

    Pillow's own reader warns about damage, which costs more than reading and is not thread-safe to
    silence.
    """
    if not isinstance(exif, bytes):
        return 1
    block = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(block[:2], "")
    try:
        (start,) = struct.unpack_from(f"{order}I", block, 4)
        (count,) = struct.unpack_from(f"{order}H", block, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(f"{order}HHI", block, entry)
            if tag == _ORIENTATION and kind in _INTEGER_TYPES and values == 1:
                return struct.unpack_from(f"{order}{_INTEGER_TYPES[kind]}", block, entry + 8)[0]
    except struct.error:  # it ends early
        pass
    return 1


def _in_high_bytes(picture: PilImage.Image) -> PilImage.Image:
    """Return 16-bit grey as L; convert() would clip it to white."""
    values, clear = np.asarray(picture), picture.info.get("transparency")
    grey = (values >> 8).astype(np.uint8)
    if isinstance(clear, int):
        grey[values == clear] = 255
    return PilImage.fromarray(grey)


def _without_transparency(picture: PilImage.Image, depth: int) -> PilImage.Image:
    clear = picture.info.get("transparency")
    if clear is not None and picture.mode in _KEYED:
        if (scaled := _in_eight_bits(clear, depth)) != clear:
            picture = picture.copy()
            picture.info["transparency"] = scaled
        return _on_white(picture)
    if picture.mode in _SEE_THROUGH or _has_clear_palette(picture):
        return _on_white(picture)
    return picture if picture.mode in ("L", "RGB") else picture.convert("RGB")


def _has_clear_palette(picture: PilImage.Image) -> bool:
    return picture.mode == "P" and picture.palette is not None and "A" in picture.palette.mode


def _in_eight_bits(clear: object, depth: int) -> object:
    """Return the transparent value of a PNG in the range to which Pillow scales its pixels."""
    if isinstance(clear, tuple):
        values = cast(tuple[int, ...], clear)
        is_wide = depth == 16 or max(values) > 255
        return tuple(value >> 8 for value in values) if is_wide else values
    if isinstance(clear, int) and depth < 8 and clear < 1 << depth:
        return clear * 255 // ((1 << depth) - 1)
    return clear


def _on_white(picture: PilImage.Image) -> PilImage.Image:
    width, height = picture.size
    rows = max(1, _BAND_PIXELS // width)
    if height > rows:  # in bands: four copies of a large image would take a gigabyte
        flat = PilImage.new("RGB", picture.size)
        for top in range(0, height, rows):
            band = picture.crop((0, top, width, min(height, top + rows)))
            flat.paste(_on_white(band), (0, top))
        return flat
    if picture.mode == "La":  # which has no conversion of its own
        picture = picture.convert("LA")
    rgba = picture.convert("RGBA")
    white = PilImage.new("RGBA", rgba.size, "white")
    return PilImage.alpha_composite(white, rgba).convert("RGB")


def _kind_of(data: bytes) -> str:
    """Return a description of a file by the format that Pillow recognizes; nothing is decoded."""
    PilImage.init()
    for name, (_, accepts) in PilImage.OPEN.items():
        try:
            if accepts is not None and accepts(data[:_PREFIX_BYTES]):
                return f"a file of kind {name}"
        except _DECODER_ERRORS:  # the file is shorter than what the plugin looks at
            continue
    return "a file"


def _without_ancillary_chunks(data: bytes) -> tuple[bytes, bytes]:
    """Return a PNG without the chunks that do not change its pixels, up to its end; and its EXIF.

    Damage is left to the decoder; an unknown critical chunk counts as the end.
    """
    first = start = place = len(_PNG_SIGNATURE)
    kept, exif = [data[:first]], b""
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        end = place + 12 + length
        if kind[0] & _IS_ANCILLARY:
            if kind == b"eXIf":
                exif = data[place + 8 : end - 4]
            if kind != b"tRNS":
                if start < place:
                    kept.append(data[start:place])
                start = end
        elif kind not in _PNG_CRITICAL:
            break
        place = end
        if kind == b"IEND":
            break
    if start == first and place >= len(data):
        return data, exif
    return b"".join((*kept, data[start:place])), exif


def _exact(data: bytes, image_format: str) -> bytes | None:
    """Return a file without metadata, or None if its format is not supported."""
    if image_format == "png":
        return data  # its ancillary chunks are gone already
    if image_format == "jpeg":
        return _without_segments(data)
    is_simple = image_format == "webp" and data[12:16] in (b"VP8 ", b"VP8L")
    return data[: 8 + int.from_bytes(data[4:8], "little")] if is_simple else None


def _without_segments(data: bytes) -> bytes | None:
    """Return a JPEG without its comments and application data, up to its end; None if damaged.

    The JFIF and Adobe headers, which define the color encoding, are kept.
    """
    kept, place = [data[:2]], 2
    while data[place : place + 1] == b"\xff":
        kind = data[place + 1 : place + 2]
        if not b"\xc0" <= kind <= b"\xfe" or b"\xd0" <= kind <= b"\xd9":  # has no length
            return None
        if kind == b"\xda":  # the pixels; a marker inside them has another second byte
            end = data.rfind(b"\xff\xd9")
            is_one = data.find(b"\xff\xd8\xff", place) < 0  # not several images
            return b"".join((*kept, data[place : end + 2])) if is_one and end > place else None
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        is_metadata = (b"\xe1" <= kind <= b"\xef" and kind != b"\xee") or kind == b"\xfe"
        if not is_metadata:
            kept.append(data[place:end])
        place = end
    return None


def _check_webp(data: bytes) -> None:
    """Check the canvas size in a WebP header; the decoder rejects other bytes."""
    kind, header = data[12:16], data[20:30]
    if len(header) < 10:
        return
    if kind == b"VP8X":
        sides = (header[4:7], header[7:10])
        width, height = (int.from_bytes(side, "little") + 1 for side in sides)
    elif kind == b"VP8L":
        bits = int.from_bytes(header[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", header[6:10]))
    else:
        return
    check_size((width, height))
