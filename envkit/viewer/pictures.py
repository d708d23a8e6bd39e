"""The images of a page, each once, in base64.

A stored image is taken as its file holds it, without decoding: that its parts have their recorded
checksums shows that the file is whole. That its pixels are those of its name is for `envkit verify`
to say, which decodes them all.
"""

import base64
import struct
import zlib
from collections.abc import Iterable, Iterator

from envkit.errors import ImageError, StorageError
from envkit.image_files import read_image_file
from envkit.images import Image
from envkit.trajectory.image_folder import ImageFolder

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Pictures:
    """Collects images by their hash."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Image, ImageFolder | None]] = {}

    def keep(self, images: Iterable[Image], folder: ImageFolder | None) -> None:
        """Take images; one that is here already is not taken twice.

        Args:
            images: Of an episode.
            folder: Where their files are; None for images in memory.
        """
        for image in images:
            self._kept.setdefault(image.sha256, (image, folder))

    def blocks(self, budget: int, notes: list[str]) -> Iterator[tuple[str, str]]:
        """Yield hash and PNG file, in base64, of each image, and let go of it.

        Args:
            budget: So many characters at most; an image beyond it is left out.
            notes: Gets a line about what is missing or left out.
        """
        skipped = 0
        while self._kept:  # each is let go once it is written: decoded images are large
            sha256 = next(iter(self._kept))
            image, folder = self._kept.pop(sha256)
            try:
                content = _base64(image, folder)
            except (ImageError, StorageError) as error:
                text = str(error)
                if folder is not None:  # the page may travel; the machine's path says nothing there
                    text = text.replace(f"{folder.path.parent}/", "")
                notes.append(f"An image is missing: {text}")
                continue
            if budget < len(content):
                skipped += 1
                continue
            budget -= len(content)
            yield sha256, content
        if skipped:
            notes.append(
                f"{skipped} images are not in this file because it would grow too large; they "
                "are linked to the folder images/ beside it."
            )


def picture_size(image: Image, folder: ImageFolder | None) -> tuple[int, int]:
    """Return width and height in pixels; those of a PNG file without decoding it.

    Args:
        image: Any.
        folder: Where its file is; None for an image in memory.

    Raises:
        ImageError: It cannot be decoded.
        StorageError: Its file cannot be read.
    """
    if folder is not None:
        try:
            with folder.file(image.sha256).open("rb") as file:
                head = file.read(24)
        except OSError:
            head = b""  # the image itself says what is wrong with its file
        if len(head) == 24 and head.startswith(_SIGNATURE) and head[12:16] == b"IHDR":
            width, height = struct.unpack(">II", head[16:24])
            return width, height
    return image.size


def is_whole_png(data: bytes) -> bool:
    """Whether every chunk of a PNG file is there with its checksum, up to the last one."""
    if not data.startswith(_SIGNATURE):
        return False
    place = len(_SIGNATURE)
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        end = place + 8 + length
        if end + 4 > len(data):
            return False
        (recorded,) = struct.unpack_from(">I", data, end)
        if zlib.crc32(memoryview(data)[place + 4 : end]) != recorded:
            return False
        if data[place + 4 : place + 8] == b"IEND":
            return True
        place = end + 4
    return False


def _base64(image: Image, folder: ImageFolder | None) -> str:
    data = b""
    if folder is not None:
        try:
            data = read_image_file(folder.file(image.sha256))
        except OSError:
            data = b""  # the image itself says what is wrong with its file
    if not is_whole_png(data):
        data = image.png_bytes()  # not `data_uri`, which the image would keep
    return base64.b64encode(data).decode("ascii")
