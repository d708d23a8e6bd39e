"""A local folder of the files that tasks refer to by address."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, DatasetError

INDEX: Final = "addresses.json"
_LONGEST_NAME: Final = 80


class FileFolder:
    """Files by address, each with its hash.

    The folder holds `addresses.json`, `{address: {"file": name, "sha256": digest}}`, and the files.
    Nothing is downloaded: add each file that you have obtained with `add`.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a folder.

        Raises:
            ConfigurationError: It does not exist.
            DatasetError: Its index is not valid.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ConfigurationError(f"there is no folder {str(folder)!r} of OSWorld files")
        self._index = _read_index(self.folder / INDEX)

    def __contains__(self, address: str) -> bool:
        return self.size(address) is not None

    def __len__(self) -> int:
        return len(self._index)

    def size(self, address: str) -> int | None:
        """Return the size of the file of an address in bytes; None if it is missing."""
        entry = self._index.get(address)
        path = self.folder / entry["file"] if entry else None
        return path.stat().st_size if path is not None and path.is_file() else None

    def add(self, address: str, data: bytes) -> str:
        """Store the file of an address and return its hash."""
        digest = hashlib.sha256(data).hexdigest()
        ending = Path(address.partition("?")[0]).suffix
        safe = ending if ending[1:].isalnum() and len(ending) < _LONGEST_NAME else ""
        name = f"{digest[:32]}{safe}"
        (self.folder / name).write_bytes(data)
        self._index[address] = {"file": name, "sha256": digest}
        text = json.dumps(self._index, indent=1, sort_keys=True, ensure_ascii=False)
        (self.folder / INDEX).write_text(f"{text}\n", encoding="utf-8")
        return digest

    def read(self, address: str) -> bytes:
        """Return the file of an address.

        Raises:
            DatasetError: It is missing, or its bytes do not have the recorded hash.
        """
        entry = self._index.get(address)
        if entry is None:
            raise DatasetError(f"{str(self.folder)!r} has no file for {address!r}")
        path = self.folder / entry["file"]
        if path.exists() and not path.is_file():
            raise DatasetError(f"the file for {address!r} must be a regular file: {str(path)!r}")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DatasetError(f"cannot read the file for {address!r}: {error}") from error
        if (digest := hashlib.sha256(data).hexdigest()) != entry["sha256"]:
            raise DatasetError(
                f"{str(path)!r} has changed: the index records sha256 {entry['sha256']}, "
                f"got {digest}"
            )
        return data


def _read_index(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"cannot read {str(path)!r}: {error}") from error
    if not isinstance(read, dict):
        raise DatasetError(f"{str(path)!r} must be a JSON object, got {type(read).__name__}")
    index = cast(dict[str, Any], read)
    for address, entry in index.items():
        if not (isinstance(entry, dict) and _is_entry(cast(dict[str, Any], entry))):
            raise DatasetError(
                f"{str(path)!r}: the entry of {address!r} needs the strings 'file', a plain name, "
                f"and 'sha256', got {entry!r:.80}"
            )
    return index


def _is_entry(entry: dict[str, Any]) -> bool:
    name, digest = entry.get("file"), entry.get("sha256")
    return (
        isinstance(name, str)
        and isinstance(digest, str)
        and name == Path(name).name
        and name not in ("", ".", "..")
        and "\0" not in name
    )
