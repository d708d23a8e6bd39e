"""Images: identity, encoding, transparency, and damaged bytes."""

import copy
import io
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit.errors import ImageError
from envkit.images import MAX_PIXELS, Image


def encode(picture: PilImage.Image, name: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, name, **options)
    return buffer.getvalue()


def gradient(mode: str = "RGB", size: tuple[int, int] = (7, 5)) -> PilImage.Image:
    return PilImage.linear_gradient("L").resize(size).convert(mode)


def test_image_is_equal_by_pixels_whatever_it_came_from() -> None:
    picture = gradient()
    images = [
        Image.from_pil(picture),
        Image.from_array(np.asarray(picture)),
        Image.from_bytes(encode(picture)),
        Image.from_bytes(encode(picture, "WEBP", lossless=True)),
        Image.from_data_uri(Image.from_pil(picture).data_uri()),
    ]

    assert len(set(images)) == 1
    assert len({image.sha256 for image in images}) == 1


def test_image_differs_by_mode_size_and_pixels() -> None:
    images = {
        Image.from_pil(gradient()),
        Image.from_pil(gradient("L")),
        Image.from_pil(gradient(size=(5, 7))),
        Image.from_pil(PilImage.new("RGB", (7, 5))),
    }

    assert len(images) == 4


def test_image_is_never_copied_and_survives_pickling() -> None:
    image = Image.from_pil(gradient())

    assert copy.copy(image) is image
    assert copy.deepcopy([image])[0] is image
    assert pickle.loads(pickle.dumps(image)) == image


def test_image_keeps_out_later_edits() -> None:
    picture = gradient()
    image = Image.from_pil(picture)
    before = image.sha256

    picture.putpixel((0, 0), (255, 0, 0))

    assert Image.from_bytes(image.png_bytes()).sha256 == before
    with pytest.raises(ValueError, match="read-only"):
        image.array()[0, 0] = 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_composited_onto_white(mode: str) -> None:
    data = encode(PilImage.new("RGBA", (3, 3), (200, 0, 0, 0)).convert(mode))
    if mode == "P":
        data = encode(PilImage.new("P", (3, 3), 0), transparency=0)

    image = Image.from_bytes(data)

    assert image.pil().getpixel((1, 1)) == (255, 255, 255)
    assert image.png_bytes() != data  # an engine would composite these bytes onto black
    assert Image.from_bytes(image.png_bytes()) == image


def test_sixteen_bit_grey_keeps_its_contrast() -> None:
    deep = PilImage.fromarray(np.array([[0, 0x4000, 0x8000, 0xFFFF]], dtype=np.uint16))

    assert Image.from_bytes(encode(deep)).array().tolist() == [[0, 64, 128, 255]]


def test_png_bytes_are_returned_as_they_came() -> None:
    data = encode(gradient(), compress_level=9)

    assert Image.from_bytes(data).png_bytes() == data


@pytest.mark.parametrize("name", ["png", "webp", "jpeg"])
def test_encoding_happens_once_per_format(name: str) -> None:
    image = Image.from_pil(gradient())

    assert image.encoded(name) is image.encoded(name.upper())
    assert image.data_uri(name).startswith(f"data:image/{name};base64,")
    if name != "jpeg":
        assert Image.from_data_uri(image.data_uri(name)) == image


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ImageError, match=r"must be one of .*got 'bmp'"):
        Image.from_pil(gradient()).encoded("bmp")


def test_broken_sources_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="cannot read the image file"):
        Image.open(tmp_path / "none.png")
    with pytest.raises(ImageError, match="must contain 'base64,'"):
        Image.from_data_uri("data:image/png,abc")
    with pytest.raises(ImageError, match="not valid base64"):
        Image.from_data_uri("data:image/png;base64,!!")
    with pytest.raises(ImageError, match="must be uint8"):
        Image.from_array(np.zeros((2, 2)))  # pyright: ignore[reportArgumentType]  # the mistake
    with pytest.raises(ImageError, match="no readable image"):
        Image.from_bytes(b"GIF89a").png_bytes()


def test_broken_image_can_be_shown_in_a_message() -> None:
    assert repr(Image.from_bytes(b"broken")) == "Image(6 bytes, not decoded yet)"
    assert repr(Image.from_pil(gradient())).startswith("Image(7x5 RGB, sha256=")


def test_oversized_image_is_refused_before_it_is_decoded() -> None:
    side = int(MAX_PIXELS**0.5) + 1
    bomb = encode(PilImage.new("1", (side, side)))

    with pytest.raises(ImageError, match="resize it first"):
        Image.from_bytes(bomb).pil()


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 400),
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns about damaged TIFF tags
def test_damaged_bytes_raise_image_error_or_decode(
    name: str, edits: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(encode(gradient(), name))
    for position, value in edits:
        data[position % len(data)] = value

    image = Image.from_bytes(bytes(data[: len(data) - cut % len(data)]))
    try:
        image.pil()
    except ImageError:
        return
    assert Image.from_bytes(image.png_bytes()) == image


def test_deferred_image_is_read_on_first_use_and_checked() -> None:
    image = Image.from_pil(gradient())
    reads: list[int] = []

    def read() -> bytes:
        reads.append(1)
        return image.png_bytes()

    later = Image.deferred(read, sha256=image.sha256)
    assert later == image
    assert reads == []
    assert later.png_bytes() == image.png_bytes()
    assert reads == [1]
    with pytest.raises(ImageError, match="its file was changed"):
        Image.deferred(read, sha256="0" * 64).pil()


def test_image_is_decoded_once_by_many_threads() -> None:
    image = Image.from_bytes(encode(gradient(size=(300, 300))))
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(id(image.pil()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 8
    assert len(set(seen)) == 1
