"""The part of the oracle that types shell commands."""

import base64
import shlex
from collections.abc import Mapping, Sequence

from envkit_linux_desktop.tasks.checks import Check, Gone, Kept, Number, Text
from envkit_linux_desktop.tasks.shell import Archive


def commands(checks: Sequence[Check], files: Mapping[str, bytes]) -> list[str]:
    """Return commands that satisfy checks of files, run in the home folder.

    New contents are put aside first, since a file may have to take the place of another.
    """
    first, then, last = list[str](), list[str](), list[str]()
    for number, check in enumerate(checks):
        aside = f"/tmp/{number}"
        match check:
            case Gone():
                last.append(f"rm -r {shlex.quote(check.path)}")
            case Kept() | Text() | Number() | Archive():
                first.append(f"{_source(check, files)} > {aside}")
                folder = check.path.rpartition("/")[0]
                then.append(f"mkdir -p {shlex.quote(folder)}")
                then.append(f"cp {aside} {shlex.quote(check.path)}")
            case _:
                pass
    return [*first, *then, *last]


def _source(check: Kept | Text | Number | Archive, files: Mapping[str, bytes]) -> str:
    """Return a command that prints the final bytes of a file."""
    if isinstance(check, Archive):
        places = [path for path, data in files.items() if data in check.files.values()]
        return "tar cz " + " ".join(map(shlex.quote, places))
    after: dict[str, bytes] = {}
    check.apply(after)
    data = after[check.path]
    for path, content in files.items():
        if content == data:
            return f"cat {shlex.quote(path)}"
    return f"echo {base64.b64encode(data).decode()} | base64 -d"
