"""The part of the oracle that moves files with PCManFM's keys."""

from collections.abc import Iterator, Mapping

from envkit_linux_desktop.tasks.checks import parent_and_name
from envkit_linux_desktop.tasks.moves import Moves, key, text, wait

Files = Mapping[str, bytes]


def file_moves(before: Files, after: Files) -> Moves:
    """Yield what turns the initial folders and files into the final ones."""
    made = _folders(before)
    targets = {path: _source(path, before, after) for path in _changed(before, after)}
    yield from _set_aside(targets, before)
    for target, source in targets.items():
        for folder in _parents(target):
            if folder not in made:
                made.add(folder)
                yield from _make_folder(folder)
        start = _aside(source) if source in targets else source
        yield from _carry(start, target, is_copy=source in after and source not in targets)
    moved = set(targets.values())
    for path in sorted(before.keys() - after.keys() - moved):
        yield from _delete(path)
    for folder in sorted(_folders(before) - _folders(after), reverse=True):
        yield from _delete(folder)


def _changed(before: Files, after: Files) -> list[str]:
    return [path for path, data in after.items() if before.get(path) != data]


def _source(path: str, before: Files, after: Files) -> str:
    """Return the initial file with the final bytes; one that goes away rather than one that stays.

    Raises:
        LookupError: No file has these bytes.
    """
    same = [other for other, data in before.items() if data == after[path]]
    if not same:
        raise LookupError(f"no file has the bytes of {path}")
    return min(same, key=lambda other: after.get(other) == before[other])


def _parents(path: str) -> Iterator[str]:
    """Yield the folders of a path from the outermost on."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        yield "/".join(parts[:count])


def _folders(files: Files) -> set[str]:
    return {folder for path in files for folder in _parents(path)} | {"Downloads", "Desktop"}


def _aside(path: str) -> str:
    folder, name = parent_and_name(path)
    return f"{folder}/aside-{name}"


def _set_aside(targets: Mapping[str, str], before: Files) -> Moves:
    """Rename files whose place another one takes."""
    for path in targets:
        if path in before and path in targets.values():
            yield from _carry(path, _aside(path), is_copy=False)


def _open(folder: str) -> Moves:
    yield key("ctrl", "l")
    yield text(f"~/{folder}\n")
    yield wait(0.8)


def _select(path: str) -> Moves:
    """Open a file's folder and select the file by typing its name."""
    folder, name = parent_and_name(path)
    yield from _open(folder)
    yield text(name)
    yield wait(0.3)
    yield key("escape")


def _make_folder(path: str) -> Moves:
    folder, name = parent_and_name(path)
    yield from _open(folder)
    yield key("ctrl", "shift", "n")
    yield wait()
    yield text(f"{name}\n")
    yield wait()


def _carry(source: str, target: str, *, is_copy: bool) -> Moves:
    """Move, rename or copy a file."""
    (folder, name), (new_folder, new_name) = parent_and_name(source), parent_and_name(target)
    if folder != new_folder:
        yield from _select(source)
        yield key("ctrl", "c" if is_copy else "x")
        yield from _open(new_folder)
        yield key("ctrl", "v")
        yield wait(1.0)
    if name != new_name:
        yield from _select(f"{new_folder}/{name}")
        yield key("f2")
        yield wait()
        yield key("ctrl", "a")
        yield text(f"{new_name}\n")
        yield wait()


def _delete(path: str) -> Moves:
    yield from _select(path)
    yield key("shift", "delete")
    yield wait()
    yield key("enter")
    yield wait(0.8)
