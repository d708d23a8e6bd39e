"""Decoding image files: which formats, how large, and what hostile files cost."""

import io
import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.processes import run_python
from PIL import EpsImagePlugin, ImageOps, PngImagePlugin
from PIL import Image as PilImage

from envkit import image_files
from envkit.errors import ImageError
from envkit.image_files import MAX_BYTES, decode_image, normalized, read_image_file
from envkit.images import Image


def encode(picture: PilImage.Image, name: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, name, **options)
    return buffer.getvalue()


def gradient(mode: str = "RGB", size: tuple[int, int] = (7, 5)) -> PilImage.Image:
    return PilImage.linear_gradient("L").resize(size).convert(mode)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_chunks(png: bytes, *chunks: bytes) -> bytes:
    """Return a PNG with chunks after its header."""
    return png[:33] + b"".join(chunks) + png[33:]


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_listed_formats_are_decoded(name: str) -> None:
    assert Image.from_bytes(encode(gradient(), name)).size == (7, 5)


def test_eps_starts_no_external_program(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def ghostscript(*arguments: object, **options: object) -> object:
        started.append((arguments, options))
        return gradient().im

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    image = Image.from_bytes(encode(gradient(), "EPS"))

    with pytest.raises(ImageError, match="must be PNG"):
        image.pil()
    assert started == []


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG"])
def test_only_the_first_frame_is_decoded(name: str) -> None:
    frames = [PilImage.new("RGB", (6, 4), colour) for colour in ("red", "lime", "blue")]
    data = encode(frames[0], name, save_all=True, append_images=frames[1:], duration=9)

    shown = Image.from_bytes(data).pil().convert("RGB").getpixel((2, 2))
    assert isinstance(shown, tuple)
    assert shown[0] > 200
    assert max(shown[1:]) < 60


def _declared(name: str, side: int) -> bytes:
    """Return a short file whose header declares a square of that side."""
    if name == "PNG":
        header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
        start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
        return start + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    if name == "WEBP":
        frames = [gradient(), gradient().rotate(180)]  # a frame may be smaller than its canvas
        data = bytearray(encode(frames[0], "WEBP", save_all=True, append_images=frames[1:]))
        assert data[12:16] == b"VP8X"
        data[24:27] = data[27:30] = (side - 1).to_bytes(3, "little")
        return bytes(data)
    data = bytearray(encode(gradient(), name))
    if name == "BMP":
        data[18:26] = struct.pack("<ii", side, side)
    elif name == "GIF":
        data[6:10] = struct.pack("<HH", side, side)
    else:
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", side, side)
    return bytes(data)


_GROWTH = """
import json, re, sys
from envkit.errors import ImageError
from envkit.images import Image

def peak():
    return int(re.search(r"VmPeak:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024

for name, plain, bomb in json.load(sys.stdin):
    Image.from_bytes(bytes.fromhex(plain)).pil()  # the decoder is loaded
    before = peak()
    try:
        Image.from_bytes(bytes.fromhex(bomb)).pil()
    except ImageError as error:
        assert "pixels" in str(error), (name, error)
    else:
        raise AssertionError(f"{name} was decoded")
    assert peak() - before < 64, (name, peak() - before)
"""
"""Refuses files and checks that the address space of the process hardly grows, in MiB."""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's /proc")
def test_declared_size_is_refused_before_pixels_are_allocated() -> None:
    sides = {"PNG": 40_000, "WEBP": 12_000, "BMP": 40_000, "GIF": 40_000, "JPEG": 40_000}
    files = [
        (name, encode(gradient(), name).hex(), _declared(name, side).hex())
        for name, side in sides.items()
    ]

    run_python("-c", _GROWTH, typed=json.dumps(files))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_large_transparent_images_are_composited_in_bands(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = gradient(mode, (9, 41))
    if mode in ("RGBA", "LA"):
        picture.putalpha(gradient("L", (9, 41)).rotate(180))
        data = encode(picture)
    else:
        data = encode(picture, transparency=(90, 90, 90) if mode == "RGB" else 90)
    whole = Image.from_bytes(data)
    hashed = whole.sha256

    monkeypatch.setattr(image_files, "_BAND_PIXELS", 9 * 4)
    assert Image.from_bytes(data).sha256 == hashed
    assert whole.mode == "RGB"


def test_text_and_profiles_of_a_png_are_never_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[bytes] = []

    def expand(data: bytes) -> bytes:
        reached.append(data)
        return b""

    monkeypatch.setattr(PngImagePlugin, "_safe_zlib_decompress", expand)
    packed = zlib.compress(bytes(1 << 20))
    plain = encode(gradient())
    bomb = with_chunks(
        plain,
        chunk(b"iCCP", b"p\0\0" + packed),
        chunk(b"zTXt", b"t\0\0" + packed),
        chunk(b"iTXt", b"t\0\1\0\0\0" + packed),
        chunk(b"prVt", bytes(100_000)),
    )

    image = Image.from_bytes(bomb)
    assert image == Image.from_bytes(plain)
    assert reached == []
    assert image.png_bytes() == plain  # and none of it travels on


def test_decoded_images_carry_no_metadata() -> None:
    exif = PilImage.Exif()
    exif[270] = "a description"
    for name in ("JPEG", "WEBP", "PNG", "GIF"):
        data = encode(gradient(), name, exif=exif, icc_profile=b"p" * 9000, comment=b"c" * 900)
        picture = Image.from_bytes(data).pil()
        assert (name, picture.info) == (name, {})
        assert name == "PNG" or type(picture) is PilImage.Image  # no file, no decoder is kept
    drawn = gradient()
    drawn.info["icc_profile"] = b"p" * 9000
    assert len(Image.from_pil(drawn).png_bytes()) < 1000
    assert "icc_profile" in drawn.info


def test_encoded_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(image_files, "MAX_BYTES", 1000)
    long = bytes(1001)
    path = tmp_path / "long.png"
    path.write_bytes(long)
    reads = [
        lambda: Image.from_bytes(long),
        lambda: Image.open(path),
        lambda: Image.from_data_uri("data:image/png;base64," + "A" * 1340),
        lambda: Image.deferred(lambda: long, sha256="0" * 64).pil(),
    ]
    for read in reads:
        with pytest.raises(ImageError, match="at most 1000 bytes"):
            read()


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, link_to_device, os.mkdir])
def test_only_regular_files_are_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "a.png")
    with pytest.raises(OSError, match="not a regular file"):
        read_image_file(tmp_path / "a.png")


def test_file_is_refused_by_its_size_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.png"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES * 100)

    with pytest.raises(ImageError, match=f"at most {MAX_BYTES} bytes, got {MAX_BYTES * 100}"):
        read_image_file(path)


def test_decoding_says_which_bytes_hold_exactly_these_pixels() -> None:
    jpeg, clear = encode(gradient(), "JPEG"), encode(PilImage.new("RGBA", (3, 3)), "PNG")

    assert decode_image(jpeg).exact == jpeg
    assert decode_image(jpeg).image_format == "jpeg"
    assert decode_image(clear).exact is None


def oriented(orientation: object, name: str, mode: str = "RGB") -> tuple[bytes, PilImage.Image]:
    """Return a file with an orientation tag, and the picture that a viewer shows."""
    stored = PilImage.radial_gradient("L").crop((0, 0, 128, 40)).resize((24, 10)).convert(mode)
    exif = PilImage.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if name == "WEBP" else {"quality": 95} if name == "JPEG" else {}
    data = encode(stored, name, exif=exif, **options)
    with PilImage.open(io.BytesIO(data)) as opened:
        return data, ImageOps.exif_transpose(opened)


def same_pixels(one: PilImage.Image, other: PilImage.Image) -> bool:
    return one.size == other.size and one.tobytes() == normalized(other).tobytes()


_FILES = {
    "JPEG": ("RGB", "L", "CMYK"),
    "MPO": ("RGB", "L"),
    "PNG": ("RGB", "L", "RGBA", "LA", "P", "I;16"),
    "WEBP": ("RGB", "RGBA"),
}


@pytest.mark.parametrize(("name", "mode"), [(n, m) for n, modes in _FILES.items() for m in modes])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_tag_is_applied(name: str, mode: str, orientation: int) -> None:
    data, shown = oriented(orientation, name, mode)

    found = decode_image(data)

    assert same_pixels(found.picture, shown)
    assert found.exact is None or orientation == 1  # other bytes than these pixels'
    with PilImage.open(io.BytesIO(data)) as opened:
        assert same_pixels(Image.from_pil(opened).pil(), shown)


def test_image_with_an_orientation_is_the_same_everywhere(tmp_path: Path) -> None:
    data, shown = oriented(6, "JPEG")
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    image = Image.open(path)
    again = [
        Image.from_bytes(image.encoded(image.file_format)),
        Image.from_data_uri(image.data_uri()),
        pickle.loads(pickle.dumps(image)),
        Image.deferred(lambda: image.encoded(image.file_format), sha256=image.sha256),
        Image.deferred(lambda: data, sha256=image.sha256),
        Image.from_pil(image.pil()),
    ]

    assert image.size == shown.size
    assert {one.sha256 for one in again} == {image.sha256}
    assert all(same_pixels(one.pil(), shown) for one in again)
    with PilImage.open(io.BytesIO(image.png_bytes())) as sent:
        assert sent.getexif() == {}


def test_stored_file_of_an_image_without_its_tag_keeps_its_identity() -> None:
    # Runs recorded before orientation was applied hold the untagged file of the unturned pixels.
    data, _ = oriented(1, "JPEG")
    exact = decode_image(data).exact
    assert exact is not None

    assert Image.from_bytes(exact).sha256 == Image.from_bytes(data).sha256


def exif_block(order: str, kind: int, values: int, written: bytes, tag: int = 0x0112) -> bytes:
    mark = {"<": b"II", ">": b"MM"}[order]
    head = struct.pack(f"{order}2sHIH", mark, 42, 8, 1)
    return head + struct.pack(f"{order}HHI", tag, kind, values) + written.ljust(4, b"\0")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("kind", "code"), [(1, "B"), (3, "H"), (4, "I")], ids=["byte", "short", "long"]
)
def test_orientation_of_each_integer_type_is_applied(order: str, kind: int, code: str) -> None:
    block = exif_block(order, kind, 1, struct.pack(f"{order}{code}", 6))

    for start in (b"", b"Exif\0\0"):
        drawn = gradient()
        drawn.info["exif"] = start + block
        assert Image.from_pil(drawn).size == (5, 7)
    assert decode_image(with_chunks(encode(gradient()), chunk(b"eXIf", block))).picture.size == (
        5,
        7,
    )


@pytest.mark.parametrize(
    "block",
    [
        *(exif_block("<", 3, 1, struct.pack("<H", value)) for value in (0, 1, 9, 255, 65535)),
        exif_block(">", 4, 1, struct.pack(">I", 2**32 - 1)),
        exif_block("<", 3, 2, struct.pack("<HH", 6, 6)),  # two values
        exif_block("<", 2, 1, b"6"),  # text
        exif_block("<", 5, 1, struct.pack("<I", 6)),  # a fraction elsewhere
        exif_block("<", 3, 1, struct.pack("<H", 6), tag=0x0113),
        exif_block("<", 3, 1, struct.pack("<H", 6))[:-3],
    ],
)
def test_unknown_orientation_is_ignored(block: bytes) -> None:
    plain = encode(gradient())

    found = decode_image(with_chunks(plain, chunk(b"eXIf", block)))

    assert found.picture.tobytes() == gradient().tobytes()
    assert found.exact == plain


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow, when it opens a JPEG
@pytest.mark.parametrize(
    "exif", [b"", b"MM", b"junk", b"II*\x00\xff\xff\xff\xff", b"MM\x00*\x00\x00\x00\x08\x00\x05abc"]
)
def test_damaged_exif_data_is_ignored(exif: bytes) -> None:
    plain = encode(gradient())

    assert decode_image(with_chunks(plain, chunk(b"eXIf", exif))).exact == plain
    assert decode_image(encode(gradient(), "JPEG", exif=b"Exif\0\0" + exif)).picture.size == (7, 5)
    drawn = gradient()
    drawn.info["exif"] = exif
    assert Image.from_pil(drawn).size == (7, 5)


def test_orientation_after_the_pixels_of_a_png_is_applied() -> None:
    exif = PilImage.Exif()
    exif[0x0112] = 6
    plain = encode(gradient())
    late = plain[:-12] + chunk(b"eXIf", exif.tobytes()[6:]) + plain[-12:]

    assert decode_image(late).picture.size == (5, 7)


WHITE, RED, GREY = (255, 255, 255), (255, 0, 0), (127, 127, 127)
SEEN: dict[str, list[tuple[object, object]]] = {
    "1": [(0, (0, 0, 0)), (255, WHITE)],
    "L": [(0, 0), (127, 127), (255, 255)],
    "LA": [((0, 255), (0, 0, 0)), ((0, 0), WHITE), ((0, 128), GREY)],
    "La": [((0, 255), (0, 0, 0)), ((0, 0), WHITE), ((0, 128), GREY)],
    "RGB": [(RED, RED)],
    "RGBX": [((255, 0, 0, 0), RED)],
    "RGBA": [((255, 0, 0, 255), RED), ((255, 0, 0, 0), WHITE), ((0, 0, 0, 128), GREY)],
    "RGBa": [((255, 0, 0, 255), RED), ((0, 0, 0, 0), WHITE), ((0, 0, 0, 128), GREY)],
    "CMYK": [((0, 255, 255, 0), RED), ((0, 0, 0, 255), (0, 0, 0))],
    "YCbCr": [((76, 85, 255), (254, 0, 0)), ((127, 128, 128), GREY)],
    "HSV": [((0, 255, 255), RED), ((0, 0, 127), GREY)],
    "LAB": [((255, 128, 128), WHITE), ((0, 128, 128), (0, 0, 0)), ((138, 209, 198), RED)],
    **{f"I;16{order}": [(0, 0), (1000, 3), (65535, 255)] for order in ("", "L", "B", "N")},
}
"""Mode -> a pixel in it, and what a viewer shows."""
REFUSED = {"I": 1000, "F": 0.5}
"""Modes whose values have no fixed range."""
PALETTES = {"P", "PA"}


def test_table_has_every_mode_of_pillow() -> None:
    assert set(PilImage.MODES) <= SEEN.keys() | REFUSED.keys() | PALETTES


@pytest.mark.parametrize(
    ("mode", "pixel", "seen"), [(mode, *pair) for mode, pairs in SEEN.items() for pair in pairs]
)
def test_every_mode_looks_as_in_a_viewer(mode: str, pixel: object, seen: object) -> None:
    picture = PilImage.new(mode, (3, 2))
    picture.putpixel((1, 1), pixel)  # type: ignore[arg-type]

    shown = Image.from_pil(picture).pil().getpixel((1, 1))
    assert shown == pytest.approx(seen, abs=5 if mode == "LAB" else 0)  # a byte has few of its reds


@pytest.mark.parametrize(("mode", "pixel"), REFUSED.items())
def test_mode_without_a_range_is_refused_by_name(mode: str, pixel: float) -> None:
    with pytest.raises(ImageError, match=f"fixed range, got mode '{mode}'.*from_array"):
        Image.from_pil(PilImage.new(mode, (2, 2), pixel))


def clear_palette() -> PilImage.Image:
    picture = PilImage.new("P", (3, 1))
    picture.putpalette(bytes((255, 0, 0, 255, 0, 0, 0, 128, 0, 255, 0, 0)), "RGBA")
    picture.putdata([0, 1, 2])
    return picture


def palette_and_alpha() -> PilImage.Image:
    picture = PilImage.new("P", (3, 1))
    picture.putpalette(bytes((255, 0, 0, 0, 0, 0, 0, 255, 0)))
    picture.putdata([0, 1, 2])
    alpha = PilImage.new("L", (3, 1))
    alpha.putdata([255, 128, 0])
    picture = picture.convert("PA")
    picture.putalpha(alpha)
    return picture


@pytest.mark.parametrize("make", [clear_palette, palette_and_alpha])
def test_palette_with_transparency_is_composited(make: Callable[[], PilImage.Image]) -> None:
    picture = make()
    shown = Image.from_pil(picture).pil()

    assert picture.mode in PALETTES
    assert [shown.getpixel((x, 0)) for x in range(3)] == [RED, GREY, WHITE]


def png(depth: int, color: int, samples: bytes, clear: bytes) -> bytes:
    """Return a PNG of 2x1 pixels with a transparent value."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, depth, color, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + samples))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"tRNS", clear) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("depth", "color", "samples", "clear", "other"),
    [
        (1, 0, b"\x40", (0,), WHITE),
        (2, 0, b"\x60", (1,), (170, 170, 170)),
        (4, 0, b"\x5f", (5,), WHITE),
        (8, 0, b"\x05\x06", (5,), (6, 6, 6)),
        (16, 0, struct.pack(">2H", 1000, 1001), (1000,), 3),
        (8, 2, bytes((1, 2, 3, 255, 0, 0)), (1, 2, 3), RED),
        (16, 2, struct.pack(">6H", 1000, 2000, 3000, 65535, 0, 0), (1000, 2000, 3000), RED),
        (16, 2, struct.pack(">6H", 99, 99, 99, 65535, 0, 0), (99, 99, 99), RED),
    ],
)
def test_transparent_value_of_a_png_is_found_at_every_depth(
    depth: int, color: int, samples: bytes, clear: tuple[int, ...], other: object
) -> None:
    data = png(depth, color, samples, struct.pack(f">{len(clear)}H", *clear))

    shown = Image.from_bytes(data).pil()

    assert shown.getpixel((0, 0)) in (255, WHITE)
    assert shown.getpixel((1, 0)) == other


def test_sixteen_bit_png_that_old_pillow_opens_as_integers_keeps_its_contrast() -> None:
    assert normalized(PilImage.new("I", (1, 1), 1000), depth=16).getpixel((0, 0)) == 3


@pytest.mark.parametrize("clear", ["x", (1, 2), (), 1.5])
@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1"])
def test_transparency_that_pillow_cannot_read_is_an_image_error(mode: str, clear: object) -> None:
    picture = PilImage.new(mode, (1, 1))
    picture.info["transparency"] = clear

    with pytest.raises(ImageError, match=f"mode '{mode}' cannot be converted"):
        Image.from_pil(picture)


@pytest.mark.parametrize("name", ["TIFF", "PPM", "ICO", "JPEG2000", "PCX", "PSD", "EPS"])
def test_refused_file_is_called_by_its_kind(name: str) -> None:
    is_written = name != "PSD"
    data = encode(gradient(size=(32, 32)), name) if is_written else b"8BPS\0\1" + bytes(20)

    with pytest.raises(ImageError, match=f"must be PNG, .* got a file of kind {name} that starts"):
        Image.from_bytes(data).pil()
