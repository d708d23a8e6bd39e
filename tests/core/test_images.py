"""Images: identity, encoding, transparency, and damaged bytes."""

import copy
import gc
import io
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from fakes.budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit import image_files, images
from envkit.errors import ImageError
from envkit.image_files import MAX_PIXELS, DecodedImage
from envkit.images import Image


def encode(picture: PilImage.Image, name: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, name, **options)
    return buffer.getvalue()


def gradient(mode: str = "RGB", size: tuple[int, int] = (7, 5)) -> PilImage.Image:
    return PilImage.linear_gradient("L").resize(size).convert(mode)


def test_image_is_equal_by_pixels_regardless_of_its_source() -> None:
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


@pytest.mark.parametrize("name", ["JPEG", "WEBP"])
def test_image_keeps_the_bytes_that_it_came_in(name: str) -> None:
    data = encode(gradient(), name, quality=80)

    image = Image.from_bytes(data)

    assert image.file_format == name.lower()
    assert image.encoded(image.file_format) == data
    assert Image.from_bytes(image.png_bytes()) == image  # what other decoders are sent
    assert image.encoded(name) == data


@pytest.mark.parametrize("name", ["JPEG", "WEBP"])
def test_kept_bytes_carry_no_metadata_and_the_same_pixels(name: str) -> None:
    exif = PilImage.Exif()
    exif[270] = "a secret description"
    more = {"icc_profile": b"p" * 900, "exif": exif, "comment": b"a secret comment"}
    data = encode(gradient(), name, quality=80, **more)

    image = Image.from_bytes(data)
    kept = image.encoded(image.file_format)

    assert b"secret" in data
    assert b"secret" not in kept
    assert Image.from_bytes(kept) == image == Image.from_bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        encode(gradient("CMYK"), "JPEG"),
        encode(PilImage.new("RGBA", (7, 5), (9, 9, 9, 90)), "WEBP", lossless=True),
        encode(gradient("L"), "GIF"),
        encode(gradient(), "BMP"),
        encode(gradient(), "JPEG") + encode(gradient(), "JPEG"),
        encode(gradient(), "MPO", save_all=True, append_images=[gradient()]),
    ],
)
def test_files_of_other_pixels_or_of_several_images_become_png(data: bytes) -> None:
    image = Image.from_bytes(data)
    assert image.file_format == "png"
    assert Image.from_bytes(image.png_bytes()) == image


def test_pickled_image_is_neither_decoded_nor_hashed_until_pixels_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = [Image.from_bytes(encode(gradient(), name, quality=80)) for name in ("PNG", "JPEG")]
    sent.append(Image.from_pil(gradient()))
    data = pickle.dumps(sent)
    work: list[str] = []
    decode, identify = image_files.decode_image, images._identity

    def decoded(data: bytes) -> DecodedImage:
        work.append("decoded")
        return decode(data)

    def identity(picture: PilImage.Image) -> str:
        work.append("hashed")
        return identify(picture)

    monkeypatch.setattr(image_files, "decode_image", decoded)
    monkeypatch.setattr(images, "_identity", identity)

    got = pickle.loads(data)
    assert got == sent
    assert [image.size for image in got] == [(7, 5)] * 3
    assert [image.file_format for image in got] == ["png", "jpeg", "png"]
    assert all(image.is_ready() for image in got)
    assert pickle.dumps(got) == data
    assert work == []
    assert got[1].array().tolist() == sent[1].array().tolist()
    assert work == ["decoded", "hashed"]


def test_pickled_image_with_other_bytes_is_refused_when_its_pixels_are_read() -> None:
    others = Image.from_pil(PilImage.new("RGB", (7, 5))).png_bytes()
    image = Image.from_pil(gradient(), png=others)  # a promise that does not hold
    with pytest.raises(ImageError, match="must have sha256"):
        pickle.loads(pickle.dumps(image)).pil()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from(["L", "RGB"]),
    st.integers(0, 2**32 - 1),
)
def test_drawn_image_is_encoded_without_loss(size: tuple[int, int], mode: str, seed: int) -> None:
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    image = Image.from_array(pixels)
    with PilImage.open(io.BytesIO(image.png_bytes())) as opened:
        opened.verify()
    assert Image.from_bytes(image.png_bytes()).array().tolist() == pixels.tolist()


def test_drawn_image_larger_than_a_block_is_encoded_without_loss() -> None:
    for size in ((4000, 3), (30_000, 2), (700, 300)):
        image = Image.from_pil(gradient(size=size))
        assert Image.from_bytes(image.png_bytes()) == image


def test_encoding_that_comes_with_an_image_is_kept() -> None:
    picture = gradient()
    data = encode(picture, compress_level=9)
    image = Image.from_pil(picture, png=data)
    picture.putpixel((0, 0), (255, 0, 0))
    assert image.png_bytes() is data
    assert image == Image.from_bytes(data) == Image.from_pil(gradient())


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
    with pytest.raises(ImageError, match=r"Image\.from_pil"):
        Image(gradient())  # pyright: ignore[reportArgumentType]  # the mistake
    with pytest.raises(ImageError, match="must be uint8"):
        Image.from_array(np.zeros((2, 2)))  # pyright: ignore[reportArgumentType]  # the mistake
    with pytest.raises(ImageError, match="not a readable image"):
        Image.from_bytes(b"GIF89a").png_bytes()


def test_broken_image_can_be_shown_in_a_message() -> None:
    assert repr(Image.from_bytes(b"broken")) == "Image(6 bytes, not decoded yet)"
    assert repr(Image.from_pil(gradient())).startswith("Image(7x5 RGB, sha256=")


def test_oversized_image_is_refused_before_it_is_decoded() -> None:
    side = int(MAX_PIXELS**0.5) + 1
    bomb = encode(PilImage.new("1", (side, side)))

    with pytest.raises(ImageError, match="resize it first"):
        Image.from_bytes(bomb).pil()


@settings(max_examples=examples(150), deadline=None)
@given(
    name=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]),
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


def live_images(size: tuple[int, int]) -> int:
    """Return how many images of a size have their pixels in memory."""
    return sum(
        isinstance(entry, PilImage.Image) and entry.size == size for entry in gc.get_objects()
    )


@pytest.fixture
def two_images(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Let the process keep two decoded images of the size that is returned."""
    size = (61, 67)
    recent = images._RecentPixels(2 * (61 * 67 * 4 + images._OVERHEAD_BYTES))
    monkeypatch.setattr(images, "_recent", recent)
    gc.freeze()  # earlier ones are not checked
    return size


def test_pixels_are_released_while_images_are_kept(two_images: tuple[int, int]) -> None:
    pictures = [PilImage.new("RGB", two_images, (shade, 0, 0)) for shade in range(9)]
    data = [encode(picture) for picture in pictures]
    del pictures

    kept = [Image.from_bytes(entry) for entry in data]
    hashes = [image.sha256 for image in kept]
    assert live_images(two_images) == 2
    assert [image.size for image in kept] == [two_images] * 9
    assert all(image.png_bytes() == entry for image, entry in zip(kept, data, strict=True))
    assert live_images(two_images) == 2

    assert kept[0].array()[0, 0].tolist() == [0, 0, 0]  # decoded again
    assert kept[8].array()[0, 0].tolist() == [8, 0, 0]
    assert live_images(two_images) == 2
    assert [image.sha256 for image in kept] == hashes


def test_drawn_images_release_their_pixels_once_encoded(two_images: tuple[int, int]) -> None:
    kept = [Image.from_pil(PilImage.new("RGB", two_images, (shade, 0, 0))) for shade in range(9)]
    hashes = [image.sha256 for image in kept]
    assert live_images(two_images) == 9

    encoded = [image.png_bytes() for image in kept]
    assert live_images(two_images) == 2
    assert [Image.from_bytes(data).sha256 for data in encoded] == hashes
    assert [image.array()[0, 0].tolist() for image in kept] == [[n, 0, 0] for n in range(9)]
    assert all(image.png_bytes() is data for image, data in zip(kept, encoded, strict=True))


def test_converted_images_stay_the_same_after_release(two_images: tuple[int, int]) -> None:
    clear = [PilImage.new("RGBA", two_images, (9, 9, n, n * 20)) for n in range(5)]
    kept = [Image.from_bytes(encode(picture, "WEBP", lossless=True)) for picture in clear]
    del clear

    first = [image.array().tolist() for image in kept]
    for image in kept:
        image.png_bytes()

    assert [image.array().tolist() for image in kept] == first
    assert live_images(two_images) == 2


def test_pixels_in_use_stay_valid_after_release(two_images: tuple[int, int]) -> None:
    image = Image.from_bytes(encode(PilImage.new("RGB", two_images, (7, 8, 9))))
    held = image.pil()
    for shade in range(4):
        Image.from_bytes(encode(PilImage.new("RGB", two_images, (shade, 0, 0)))).pil()

    assert image.pil() is not held
    assert held.getpixel((60, 66)) == (7, 8, 9)


def test_ready_image_stays_ready_after_release(two_images: tuple[int, int]) -> None:
    kept = [
        Image.from_bytes(encode(PilImage.new("RGB", two_images, (shade, 0, 0))))
        for shade in range(4)
    ]
    assert not kept[0].is_ready()
    for image in kept:
        _ = image.sha256, image.png_bytes()

    assert all(image.is_ready() for image in kept)
    assert [repr(image)[:16] for image in kept] == ["Image(61x67 RGB,"] * 4


def test_threads_share_images_whose_pixels_come_and_go(two_images: tuple[int, int]) -> None:
    kept = [
        Image.from_bytes(encode(PilImage.new("RGB", two_images, (shade, 0, 0))))
        for shade in range(6)
    ]
    wrong: list[object] = []

    def read(start: int) -> None:
        for step in range(120):
            shade = (start + step * (start + 1)) % 6
            if kept[shade].pil().getpixel((1, 1)) != (shade, 0, 0):
                wrong.append(shade)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert live_images(two_images) == 2


def test_checking_an_image_keeps_no_pixels(two_images: tuple[int, int]) -> None:
    image = Image.from_bytes(encode(PilImage.new("RGB", two_images)))
    image.check()

    assert live_images(two_images) == 0
    assert repr(image).startswith("Image(61x67 RGB,")
    with pytest.raises(ImageError, match="not a readable image"):
        Image.from_bytes(b"broken").check()


def test_dropped_images_take_no_place(two_images: tuple[int, int]) -> None:
    data = encode(PilImage.new("RGB", two_images))
    for _ in range(500):
        Image.from_bytes(data).pil()

    assert live_images(two_images) == 0
    assert len(images._recent._images) <= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # other tests leave threads
def test_forked_process_decodes_while_a_thread_of_its_parent_did() -> None:
    data = encode(gradient())
    with images._recent._lock:
        child = os.fork()
        if child == 0:
            # The lock of the parent's thread is gone; a reentrant one would not show it.
            done = threading.Thread(target=lambda: Image.from_bytes(data).pil(), daemon=True)
            done.start()
            done.join(120)
            os._exit(done.is_alive())
    assert os.waitpid(child, 0)[1] == 0
