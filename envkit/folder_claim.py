"""The exclusive right to write a folder."""

import contextlib
from pathlib import Path
from typing import Final

from envkit.closing import Closing
from envkit.errors import StorageError
from envkit.files import LineFile, storage_errors

_ATTEMPTS: Final = 100


class FolderClaim(Closing):
    """The exclusive right to write a folder, until it is closed or its process ends.

    Whoever locks one file of the folder has the right, so paths through symbolic links name the
    same folder. The folder and the file are created if they are missing.
    """

    def __init__(self, folder: Path, name: str, *, durable: bool = False) -> None:
        """Claim the folder.

        Args:
            folder: The folder.
            name: Name of its file to lock.
            durable: As for `LineFile`.

        Raises:
            BusyError: Another process has claimed the folder.
            StorageError: It cannot be written.
        """
        self.folder: Final = folder
        self._made: list[Path] = []
        """Folders that this claim created, parents first."""
        try:
            self.file: Final = self._locked(name, durable=durable)
        except BaseException:
            self._remove_folders()
            raise

    def remove(self, *, also_found: bool = False) -> None:
        """Remove what this claim created, and close it; lines and other files stay.

        Args:
            also_found: Also remove an empty locked file that already existed.
        """
        if (self.file.is_new or also_found) and not self.file.size:
            with contextlib.suppress(StorageError):
                self.file.remove()
        self.file.close()
        self._remove_folders()

    def close(self) -> None:
        """Release the folder; safe to call twice."""
        self.file.close()

    def _locked(self, name: str, *, durable: bool) -> LineFile:
        path = self.folder / name
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with storage_errors(f"cannot open {path} for writing"):
                    self._make_folders()
                return LineFile(path, durable=durable)
            except StorageError as error:
                is_gone = isinstance(error.__cause__, FileNotFoundError)
                if not is_gone or attempt == _ATTEMPTS:
                    raise  # otherwise the process that made a folder has just removed it
        raise AssertionError("the last attempt returns or raises")

    def _make_folders(self) -> None:
        for folder in (*reversed(self.folder.parents), self.folder):
            if folder.is_dir():
                continue
            try:
                folder.mkdir()
            except FileExistsError:
                if not folder.is_dir():
                    raise
            else:
                self._made.append(folder)

    def _remove_folders(self) -> None:
        with contextlib.suppress(OSError):  # one is not empty
            while self._made:
                self._made.pop().rmdir()
