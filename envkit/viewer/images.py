"""The images of a page in base64, each once.

The page embeds the file of a stored image without decoding it: the checksums of its chunks show
that the file is intact. `envkit verify` decodes all images and checks that their pixels match their
names.
"""

import base64
import struct
import zlib
from collections.abc import Iterable, Iterator

from envkit.errors import ImageError, StorageError
from envkit.image_files import read_image_file
from envkit.images import Image
from envkit.open_files import open_regular
from envkit.trajectory.image_folder import ImageFolder

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Pictures:
    """Collects images by their hash."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Image, ImageFolder | None]] = {}

    def keep(self, images: Iterable[Image], folder: ImageFolder | None) -> None:
        """Add images; those already added are ignored.

        Args:
            images: The images of an episode.
            folder: Folder of their files; None for images in memory.
        """
        for image in images:
            self._kept.setdefault(image.sha256, (image, folder))

    def blocks(self, budget: int, notes: list[str]) -> Iterator[tuple[str, str]]:
        """Yield the hash and base64 PNG of each image, and free it.

        Args:
            budget: Maximum number of characters; images beyond it are left out.
            notes: Receives a note about each missing image and about those left out.
        """
        skipped = 0
        while self._kept:  # free each one once it is written, since decoded images are large
            sha256 = next(iter(self._kept))
            image, folder = self._kept.pop(sha256)
            try:
                content = _base64(image, folder)
            except (ImageError, StorageError) as error:
                text = str(error)
                if folder is not None:  # a page may be shared, so do not show a local path
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
                f"{skipped} images are not embedded because this file would become too large; it "
                "links to them in the folder images/ next to it."
            )


def image_size(image: Image, folder: ImageFolder | None = None) -> tuple[int, int] | None:
    """Return width and height in pixels, without decoding PNG files.

    Args:
        image: The image.
        folder: Folder of its file; None for an image in memory.

    Returns:
        None for an image that cannot be read.
    """
    if folder is not None:
        try:
            with open_regular(folder.file(image.sha256)) as file:
                head = file.read(24)
        except OSError:
            head = b""
        if len(head) == 24 and head.startswith(_SIGNATURE) and head[12:16] == b"IHDR":
            width, height = struct.unpack(">II", head[16:24])
            return width, height
    try:
        return image.size
    except (ImageError, StorageError):
        return None


def is_whole_png(data: bytes) -> bool:
    """Whether a PNG file is complete and the checksums of all its chunks match."""
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
            data = b""  # reading the image itself reports the error
    if not is_whole_png(data):
        data = image.png_bytes()  # not `data_uri`, which the image would cache
    return base64.b64encode(data).decode("ascii")
