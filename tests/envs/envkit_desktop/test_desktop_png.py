import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit_desktop.banded_png import BandedPng

SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90))
BOXES = st.tuples(st.integers(-5, 95), st.integers(-5, 95), st.integers(1, 60), st.integers(1, 60))


def _decoded(data: bytes) -> bytes:
    with PilImage.open(io.BytesIO(data)) as picture:
        picture.verify()
    with PilImage.open(io.BytesIO(data)) as picture:
        assert picture.mode == "RGB"
        return picture.tobytes()


def _noise(size: tuple[int, int], seed: int) -> PilImage.Image:
    count = size[0] * size[1] * 3
    block = bytes((seed * 37 + index * index * 11) % 251 for index in range(min(count, 997)))
    return PilImage.frombytes("RGB", size, (block * (count // len(block) + 1))[:count])


@settings(deadline=None)
@given(size=SIZES, seed=st.integers(0, 999), boxes=st.lists(BOXES, max_size=4))
def test_bands_decode_to_the_pixels_after_any_edits(
    size: tuple[int, int], seed: int, boxes: list[tuple[int, int, int, int]]
) -> None:
    picture = _noise(size, seed)
    encoder = BandedPng(*size)
    assert _decoded(encoder.encode(picture)) == picture.tobytes()
    for x, y, width, height in boxes:
        picture.paste((seed % 256, x % 256, y % 256), (x, y, x + width, y + height))
        data = encoder.encode(picture, [(y, y + height)])
        assert _decoded(data) == picture.tobytes()
        assert data == BandedPng(*size).encode(picture)


def test_bytes_depend_on_the_pixels_only() -> None:
    picture = _noise((100, 100), 3)
    encoder = BandedPng(100, 100)
    encoder.encode(PilImage.new("RGB", (100, 100)))
    assert encoder.encode(picture, None) == BandedPng(100, 100).encode(picture)


def test_only_dirty_rows_are_encoded_again() -> None:
    picture = PilImage.new("RGB", (50, 100), "white")
    encoder = BandedPng(50, 100)
    encoder.encode(picture)
    picture.paste((0, 0, 0), (0, 0, 50, 100))
    pixels = _decoded(encoder.encode(picture, [(30, 31)]))
    rows = [pixels[y * 150] for y in range(100)]
    assert [y for y in range(100) if rows[y] == 0] == list(range(24, 48))


def test_png_reaches_the_image_class_as_it_is() -> None:
    picture = _noise((64, 48), 8)
    data = BandedPng(64, 48).encode(picture)
    image = Image.from_bytes(data)
    assert image.png_bytes() == data
    assert image == Image.from_pil(picture)


def test_other_modes_sizes_and_levels_are_refused() -> None:
    encoder = BandedPng(10, 10)
    with pytest.raises(ConfigurationError, match="RGB of 10x10"):
        encoder.encode(PilImage.new("L", (10, 10)))
    with pytest.raises(ConfigurationError, match="got RGB of 9x10"):
        encoder.encode(PilImage.new("RGB", (9, 10)))
    with pytest.raises(ConfigurationError, match="level 0"):
        BandedPng(10, 10, level=0)
