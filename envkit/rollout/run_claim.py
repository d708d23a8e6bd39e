"""The exclusive right to write a run's folder, before and after its episodes are played."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from envkit.closing import Closing
from envkit.folder_claim import FolderClaim
from envkit.rollout.run_folder import RunFolder, is_taken
from envkit.rollout.run_settings import RUN_FILE
from envkit.trajectory.image_folder import IMAGE_FOLDER
from envkit.trajectory.storage import FILE_NAME


class RunClaim(Closing):
    """The exclusive right to write a run's folder, until it is closed or its process ends.

    A command claims the folder before it loads a model, and releases it after the report, so no
    other command works in the folder meanwhile. Closing removes what this claim created if the run
    stored nothing.
    """

    def __init__(self, path: Path) -> None:
        """Claim the folder; its contents do not change yet.

        Args:
            path: The folder, created if it is missing.

        Raises:
            BusyError: Another process is writing the folder.
            StorageError: It cannot be written.
        """
        self.path: Final = path
        self._claim = FolderClaim(path, FILE_NAME)
        self._is_kept = False
        self._begins = False
        self.had_run: Final = is_taken(path)
        """Whether the folder held a run when it was claimed."""
        self._is_open = True

    def create(self, settings: Mapping[str, Any], *, overwrite: bool = False) -> RunFolder:
        """Start a run in the folder; see `RunFolder.create`."""
        folder = RunFolder.create(self.path, settings, overwrite=overwrite, claim=self._claim)
        self._begins = not self.had_run
        return folder

    def resume(
        self, settings: Mapping[str, Any] | None, *, retry_faults: bool = False
    ) -> RunFolder:
        """Open the folder's interrupted run; see `RunFolder.resume`."""
        return RunFolder.resume(self.path, settings, retry_faults=retry_faults, claim=self._claim)

    def keep(self) -> None:
        """Keep a run that began when the claim is closed, so that it can be resumed."""
        self._is_kept = self._begins

    def close(self) -> None:
        """Release the folder; if the run stored nothing, remove what this claim created."""
        if not self._is_open:
            return
        self._is_open = False
        if self._is_kept or self.had_run or self._stored_something():
            self._claim.close()
            return
        if self._begins:
            with contextlib.suppress(OSError):
                (self.path / RUN_FILE).unlink()
        self._claim.remove()

    def _stored_something(self) -> bool:
        return self._claim.file.size > 0 or (self.path / IMAGE_FOLDER).exists()
