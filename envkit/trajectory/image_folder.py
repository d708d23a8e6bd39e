"""The images next to a trajectory file, stored once each by hash."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from envkit.errors import StorageError
from envkit.files import replace_file, storage_errors
from envkit.image_files import read_image_file
from envkit.images import Image

IMAGE_FOLDER: Final = "images"
_HASH: Final = re.compile("[0-9a-f]{64}")


class ImageFolder:
    """A folder of `<sha256>.png` files. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: WeakValueDictionary[str, Image] = WeakValueDictionary()

    def file(self, sha256: str) -> Path:
        """Return the path of the image with this hash.

        Raises:
            StorageError: The text is not a hash, so it must not become a path.
        """
        if not _HASH.fullmatch(sha256):
            raise StorageError(
                f"an image's name must be 64 lowercase hexadecimal digits, got {sha256!r:.80}"
            )
        return self.path / f"{sha256}.png"

    def files(self) -> Iterator[Path]:
        """Yield the image files; a file with another name is not the run's."""
        return (file for file in self.path.glob("*.png") if _HASH.fullmatch(file.stem))

    def holds(self, sha256: str) -> bool:
        """Whether the image with this hash has a non-empty file."""
        try:
            return self.file(sha256).stat().st_size > 0
        except OSError:
            return False

    def write(self, image: Image, *, durable: bool = False) -> None:
        """Write the image if it is not stored yet.

        Raises:
            StorageError: The image cannot be written; no partial file remains.
        """
        if self.holds(image.sha256):
            return
        with storage_errors(f"cannot create the folder {self.path}"):
            self.path.mkdir(exist_ok=True)  # not its parent: a deleted run stays deleted
        replace_file(self.file(image.sha256), image.png_bytes(), durable=durable)

    def read(self, sha256: str) -> Image:
        """Return the image. Its file is opened on first use, and a missing file raises then.

        Raises:
            StorageError: The text is not a hash.
        """
        target = self.file(sha256)
        known = self._read.get(sha256)
        if known is None:
            known = Image.deferred(_reader(target), sha256=sha256)
            self._read[sha256] = known
        return known


def _reader(target: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            return read_image_file(target)
        except OSError as error:
            raise StorageError(
                f"the image file {target} of a trajectory cannot be read: {error.strerror}; "
                "keep the images folder next to the trajectory file"
            ) from error

    return read
