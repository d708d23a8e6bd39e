"""Folders that are built once and cached: location and integrity checks.

A folder is built under a temporary name and renamed, so a crash never leaves a partial one under
the final name. A marker file lists every file with its size and SHA-256, and the recipe; a folder
that does not match its marker is rebuilt.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from envkit.errors import StorageError
from envkit.files import CACHE_VARIABLE

MARKER: Final = "envkit-folder.json"


def built_folder(folder: Path, *, recipe: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Return the folder, building it if it is missing, damaged or from another recipe.

    Two processes may build concurrently: the results are equal, and the first is kept.

    Args:
        folder: The final place.
        recipe: Everything the contents depend on, as JSON data: a version, a seed, sizes.
        build: Called with an empty folder to fill.

    Raises:
        StorageError: The folder cannot be written; no partial folder is left.
    """
    if is_intact(folder, recipe=recipe):
        return folder
    workspace: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        workspace = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        fresh = workspace / "fresh"
        fresh.mkdir()
        build(fresh)
        write_marker(fresh, recipe)
        _put_in_place(fresh, folder, recipe=recipe, trash=workspace / "old")
    except OSError as error:
        raise StorageError(
            f"cannot build {folder}: {error}; free some space or point {CACHE_VARIABLE} at a "
            "writable folder"
        ) from error
    finally:
        if workspace is not None:
            shutil.rmtree(workspace, ignore_errors=True)
    return folder


def is_intact(folder: Path, *, recipe: Mapping[str, Any] | None) -> bool:
    """Return whether the folder has exactly the files that its marker lists.

    Args:
        folder: A folder, with or without a marker.
        recipe: Recipe that must have built it; None accepts any.
    """
    try:
        marker: Any = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if recipe is not None and marker["recipe"] != json.loads(json.dumps(dict(recipe))):
            return False
        files: dict[str, list[Any]] = marker["files"]
        return bool(files) and all(
            (folder / name).stat().st_size == size and _digest(folder / name) == digest
            for name, (size, digest) in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_marker(folder: Path, recipe: Mapping[str, Any]) -> None:
    """List every file of the folder with its size and SHA-256 in its marker.

    Args:
        folder: A complete folder; files added later are not listed or checked.
        recipe: Recipe that built it, as JSON data.
    """
    files = {
        path.relative_to(folder).as_posix(): [path.stat().st_size, _digest(path)]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    marker = {"recipe": dict(recipe), "files": files}
    (folder / MARKER).write_text(json.dumps(marker, indent=1), encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _put_in_place(fresh: Path, folder: Path, *, recipe: Mapping[str, Any], trash: Path) -> None:
    if folder.exists():
        if is_intact(folder, recipe=recipe):
            return  # another process was faster
        folder.rename(trash)
    try:
        fresh.rename(folder)
    except OSError:
        if not is_intact(folder, recipe=recipe):
            raise
