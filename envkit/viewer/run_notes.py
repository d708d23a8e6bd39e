"""Notes and tags that people give to runs: `notes.json` in the folder of each run.

The file is next to the trajectories, so it goes where its run goes and ends with it. A change names
what the person saw before it. What somebody else changed meanwhile is kept: tags are merged, and a
note that two people changed is refused with the newer one.
"""

import contextlib
import json
import os
import stat
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from envkit import open_files
from envkit.errors import ConfigurationError, StorageError, shown
from envkit.files import replace_file, storage_errors

MAX_NOTE: Final = 4_000
"""Maximum length of a note in characters."""
MAX_TAGS: Final = 20
MAX_TAG: Final = 40
MAX_BYTES: Final = 64 << 10
"""Maximum size of the file, and of a request to change it."""
_SCHEMA: Final = 1
_ATTEMPTS: Final = 100
_PAUSE_S: Final = 0.02


class ConflictError(Exception):
    """Somebody else changed the note meanwhile; `notes` has the current ones."""

    def __init__(self, notes: "RunNotes") -> None:
        super().__init__("somebody else changed this note meanwhile")
        self.notes: Final = notes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotes:
    """The note and the tags of one run."""

    note: str = ""
    tags: tuple[str, ...] = ()
    """Sorted, each once, with single spaces."""

    @classmethod
    def checked(cls, data: object) -> "RunNotes":
        """Return notes from JSON data.

        Args:
            data: An object with "note" and "tags".

        Raises:
            ConfigurationError: A value has the wrong type or exceeds a limit.
        """
        given = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        note, tags = given.get("note"), given.get("tags")
        if not isinstance(note, str) or len(note) > MAX_NOTE:
            size = f"{len(note)} characters" if isinstance(note, str) else type(note).__name__
            raise ConfigurationError(
                f"a note is a text of at most {MAX_NOTE:,} characters, got {size}"
            )
        if not isinstance(tags, list):
            raise ConfigurationError(f"tags are a list of texts, got {type(tags).__name__}")
        entries = cast("list[Any]", tags)
        wrong = [one for one in entries if not isinstance(one, str) or not 0 < len(one) <= MAX_TAG]
        if wrong or len(entries) > MAX_TAGS:
            raise ConfigurationError(
                f"a run has at most {MAX_TAGS} tags, each of 1 to {MAX_TAG} characters, got "
                f"{shown(wrong[0]) if wrong else len(entries)}"
            )
        words = {" ".join(one.split()) for one in entries}
        return cls(note=note, tags=tuple(sorted(words - {""})))

    @classmethod
    def parse(cls, text: bytes) -> "RunNotes":
        """Return the notes of a file.

        Raises:
            ConfigurationError: It is not a file of notes.
        """
        try:
            data: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError("it is not valid JSON") from error
        if not isinstance(data, dict) or cast("dict[str, Any]", data).get("schema") != _SCHEMA:
            raise ConfigurationError(f"it has no schema {_SCHEMA}")
        return cls.checked(cast("object", data))

    def to_json(self) -> dict[str, Any]:
        """Return the notes as JSON data."""
        return {"note": self.note, "tags": list(self.tags)}

    def merged(self, before: "RunNotes", after: "RunNotes") -> "RunNotes":
        """Return these notes after a change that somebody made to older ones.

        Args:
            before: What they saw.
            after: What they made of it.

        Raises:
            ConflictError: Both changed the note, to different texts.
            ConfigurationError: There would be too many tags.
        """
        if self.note not in (before.note, after.note) and before.note != after.note:
            raise ConflictError(self)
        removed = set(before.tags) - set(after.tags)
        return RunNotes.checked(
            {
                "note": self.note if before.note == after.note else after.note,
                "tags": list((set(self.tags) - removed) | (set(after.tags) - set(before.tags))),
            }
        )


def change_notes(file: Path, before: RunNotes, after: RunNotes) -> RunNotes:
    """Change the notes in a file, which may not exist yet, and return the new ones.

    Other processes may change it too: a lock puts the changes in order, and each replaces the file
    at once.

    Args:
        file: Its folder must exist.
        before: What the person saw.
        after: What they made of it.

    Raises:
        ConflictError: Somebody else changed the note.
        ConfigurationError: There would be too many tags.
        StorageError: The file cannot be written, or is not a file of notes.
    """
    with _locked(file) as text:
        try:
            current = RunNotes.parse(text) if text else RunNotes()
        except ConfigurationError as error:
            raise StorageError(
                f"{file.name} was not written by envkit ui, so it stays as it is: {error}; rename "
                "it to add notes"
            ) from error
        made = current.merged(before, after)
        if made != current:
            data = {"schema": _SCHEMA, **made.to_json()}
            replace_file(file, json.dumps(data, indent=1).encode("ascii") + b"\n", durable=True)
        return made


@contextlib.contextmanager
def _locked(file: Path) -> Generator[bytes]:
    """Lock the file, creating it if it is missing, and give its content."""
    flags = os.O_RDWR | os.O_CREAT | open_files.OPENS_AS_BYTES
    flags |= open_files.NO_FOLLOW | open_files.NO_WAIT
    for _ in range(_ATTEMPTS):
        with storage_errors(f"cannot write {file.name}"):
            descriptor = os.open(file, flags, 0o666)
        is_open = True
        try:
            with storage_errors(f"cannot write {file.name}"):
                text = _content(descriptor, file)
            if text is not None:
                if not open_files.CAN_MOVE_OPEN:  # nor replace it
                    open_files.close(descriptor)
                    is_open = False
                yield text
                return
        finally:
            if is_open:
                open_files.close(descriptor)
        time.sleep(_PAUSE_S)
    raise StorageError(f"{file.name} is being written by other programs; try again")


def _content(descriptor: int, file: Path) -> bytes | None:
    """Lock an open file and return its content; None if it is busy or was replaced."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise StorageError(f"{file.name} is not a regular file")
    try:
        open_files.lock(descriptor)
    except open_files.BUSY:
        return None
    except OSError:  # a file system without locks
        pass
    is_named = file.exists() and os.path.samestat(found, file.stat())
    return os.read(descriptor, MAX_BYTES + 1) if is_named else None
