"""The folder that `envkit ui` shows: it finds runs and opens only files inside the folder."""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from envkit.errors import ImageError, StorageError
from envkit.files import storage_errors
from envkit.image_files import MAX_BYTES
from envkit.open_files import open_regular
from envkit.rollout.run_settings import RUN_FILE
from envkit.rollout.vocabulary_file import VOCABULARY_FILE
from envkit.sinks.jsonl import METRICS_FILE
from envkit.text import counted
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.storage import FILE_NAME

MAX_FOLDERS: Final = 10_000
"""Maximum number of folders to search."""
MAX_DOCUMENTS: Final = 500
NOTES_FILE: Final = "notes.json"
_OWN_FILES: Final = (RUN_FILE, METRICS_FILE, NOTES_FILE, VOCABULARY_FILE)
"""JSON files of a run, which are not documents of their own."""
_MAX_JSON_BYTES: Final = 4 << 20
_MEDIA: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The runs and documents found in the folder."""

    runs: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Folders that hold trajectories, or will, by path relative to the root."""
    documents: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Other JSON files, by path relative to the root."""
    note: str = ""
    """Describes what was skipped; empty if nothing was."""


class Folder:
    """Reads files inside one folder, without following links."""

    def __init__(self, root: Path) -> None:
        """Resolve the root, which may be a link itself.

        Raises:
            StorageError: The root does not exist or is not a folder.
        """
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            raise StorageError(f"envkit ui shows the runs of a folder, and {str(root)!r} {what}")
        self.root: Final = root.resolve()

    def open(self, path: Path) -> BinaryIO:
        """Open a file inside the root for reading.

        Raises:
            StorageError: The file cannot be read, is a link, is not a regular file, or is outside
                the root.
        """
        with storage_errors(f"cannot read {path.name}"):
            parent = self.own(path.parent)
            try:
                return open_regular(parent / path.name, follow=False)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise StorageError(f"{path.name} is a link, and links are not followed") from error

    def own(self, path: Path) -> Path:
        """Return the resolved path of a folder inside the root.

        Raises:
            StorageError: It is outside the root, or does not exist.
        """
        with storage_errors(f"cannot open {path.name}"):
            found = path.resolve(strict=True)
        if not found.is_relative_to(self.root):
            raise StorageError(f"{path.name} is outside the folder that is shown")
        return found

    def read_json(self, path: Path) -> bytes:
        """Return a JSON file's bytes.

        Raises:
            StorageError: As for `open`, or the file is larger than 4 MiB.
        """
        with self.open(path) as stream, storage_errors(f"cannot read {path.name}"):
            data = stream.read(_MAX_JSON_BYTES + 1)
        if len(data) > _MAX_JSON_BYTES:
            raise StorageError(f"{path.name} is larger than {_MAX_JSON_BYTES} bytes")
        return data

    def images(self, run: Path) -> ImageFolder:
        """Return the image folder of a run; it rejects links."""
        return _OwnImages(self, run / IMAGE_FOLDER)

    def read_image(self, run: Path, sha256: str) -> tuple[bytes, str]:
        """Return an image file and its media type.

        Raises:
            StorageError: The name is not a hash, or as for `open`.
            ImageError: The file is too large or not an image.
        """
        target = ImageFolder(run / IMAGE_FOLDER).file(sha256)
        with self.open(target) as stream, storage_errors(f"cannot read {target.name}"):
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ImageError(f"{target.name} is larger than {MAX_BYTES} bytes")
        for start, kind in _MEDIA:
            if data.startswith(start):
                return data, kind
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return data, "image/webp"
        raise ImageError(f"{target.name} is not an image file")

    def find(self) -> Found:
        """Search the folder for runs and other JSON files."""
        runs: dict[str, Path] = {}
        documents: dict[str, Path] = {}
        looked = links = 0
        waiting = [self.root]
        while waiting and looked < MAX_FOLDERS:
            folder = waiting.pop()
            looked += 1
            files, folders, linked = _entries(folder)
            links += linked
            is_run = FILE_NAME in files or RUN_FILE in files
            if is_run:
                runs[self._name(folder)] = folder
            # Skip image folders: they are large and never hold runs.
            waiting += [folder / one for one in folders if not (is_run and one == IMAGE_FOLDER)]
            for one in files:
                is_other = one.endswith(".json") and one not in _OWN_FILES
                if is_other and len(documents) < MAX_DOCUMENTS:
                    documents[self._name(folder / one)] = folder / one
        notes = [f"Only the first {MAX_FOLDERS:,} folders are searched."] if waiting else []
        if links:
            folders = counted(links, "linked folder")
            notes.append(f"Skipped {folders}. Pass the target folder to envkit ui instead.")
        own = self._name(self.root)
        if own in runs and (other := _plain(self.root.name)) and other not in runs:
            runs = {other if name == own else name: path for name, path in runs.items()}
        return Found(runs=runs, documents=documents, note=" ".join(notes))

    def _name(self, path: Path) -> str:
        return _plain(path.relative_to(self.root).as_posix())


class _OwnImages(ImageFolder):
    """Image files inside the root; a link counts as missing."""

    def __init__(self, folder: Folder, path: Path) -> None:
        super().__init__(path)
        self._folder = folder

    def file(self, sha256: str) -> Path:
        """Return the path of the image with this hash.

        Raises:
            StorageError: The text is not a hash, or the file is a link or outside the root.
        """
        target = super().file(sha256)
        if target.is_symlink() or not target.resolve().is_relative_to(self._folder.root):
            raise StorageError(f"the image {sha256} is outside the folder that is shown")
        return target


def _entries(folder: Path) -> tuple[list[str], list[str], int]:
    """Return the sorted names of files and folders, and the number of links to folders.

    Hidden names are skipped. An unreadable folder counts as empty.
    """
    files: list[str] = []
    folders: list[str] = []
    links = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
                else:
                    links += entry.is_symlink() and entry.is_dir()
    except OSError:  # gone, or not readable
        pass
    return sorted(files), sorted(folders), links


def _plain(name: str) -> str:
    """Return a name for URLs and JSON: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
