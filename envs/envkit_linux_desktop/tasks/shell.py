"""Terminal families: commands in a shell, or any other way to the same files."""

import base64
import gzip
import hashlib
import io
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from envkit_linux_desktop.tasks import reading, words
from envkit_linux_desktop.tasks.checks import (
    MAX_BYTES,
    Check,
    Gone,
    Home,
    Kept,
    Number,
    PathCheck,
    Text,
    moved,
)
from envkit_linux_desktop.tasks.clues import expect, told
from envkit_linux_desktop.tasks.scenario import TERMINAL, Draft, families

_GZIP = b"\x1f\x8b"


def tar(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive whose bytes depend on the files alone."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


@dataclass(frozen=True, kw_only=True)
class Archive(PathCheck):
    """A tar or zip archive holds exactly these files, wherever in it they are."""

    files: Mapping[str, bytes]
    """Contents by the file's name without folders."""

    @property
    def is_gzipped(self) -> bool:
        """Whether the name asks for gzip."""
        return self.path.endswith(".gz")

    def holds(self, home: Home) -> bool:
        """Compare the archive's files."""
        data = home.read(self.path, limit=MAX_BYTES)
        if data is None or (self.is_gzipped and data[:2] != _GZIP):
            return False
        model = reading.read_document("archive", data)
        if model is None:
            return False
        found = [(posixpath.basename(k), v.encode("latin-1")) for k, v in model["files"].items()]
        return len(found) == len(self.files) and dict(found) == dict(self.files)

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the archive."""
        packed = tar(self.files)
        files[self.path] = gzip.compress(packed, mtime=0) if self.is_gzipped else packed


def _terminal(draft: Draft, *checks: Check) -> None:
    """Open the terminal amid the clutter, and expect what commands leave."""
    draft.open(*TERMINAL)
    if draft.level >= 2:
        draft.open("pcmanfm", "Documents")
    expect(draft, *checks)


def _lines(draft: Draft, *counts: int) -> tuple[str, list[str]]:
    """Add a long file of unsorted lines, too many to work on by hand."""
    rows = [
        f"{draft.one(words.PLAIN)},{draft.one(words.CITIES)},{draft.rng.randint(100, 9999)}"
        for _ in range(draft.at(*(counts or (20, 60, 150, 300))))
    ]
    return draft.add(draft.path("csv"), "\n".join(rows) + "\n"), rows


def sort_file(draft: Draft) -> None:
    """Save the sorted lines of a file."""
    path, rows = _lines(draft)
    new = draft.path("txt")
    is_unique = draft.level >= 3
    final = sorted({row.split(",")[0] for row in rows} if is_unique else rows)
    if draft.level == 4:
        word = draft.one(sorted(set(final)))
        final = [row for row in final if row > word]
        clause = f", but only words after {told(draft, 'word', word, words.PLAIN)}"
    else:
        clause = ""
    _terminal(draft, Text(path=new, text="\n".join(final)))
    what = "the different words in the first column" if is_unique else "the lines"
    draft.say(
        f"Save {what} of {path}, sorted by byte value (LC_ALL=C), as {new}{clause}.",
        f"Write {what} of {path} into {new} in the order of LC_ALL=C sort{clause}.",
        f"Create {new}: {what} of {path} in plain byte order, as LC_ALL=C sort gives it{clause}.",
    )


def count_words(draft: Draft) -> None:
    """Count lines, words or bytes."""
    path, rows = _lines(draft, 40, 120, 300, 700)
    new = draft.path("txt")
    what, value = draft.one(
        (
            ("lines that end in an even digit", sum(int(row[-1]) % 2 == 0 for row in rows)),
            ("bytes", len(draft.files[path])),
            ("different cities in the second column", len({row.split(",")[1] for row in rows})),
        )
        if draft.level < 3
        else (
            ("bytes", len(draft.files[path])),
            ("lines whose number is above 5000", sum(int(r.split(",")[2]) > 5000 for r in rows)),
        )
    )
    if draft.level == 4:
        city = draft.one(words.CITIES)
        value = sum(row.split(",")[1] == city for row in rows)
        what = f"lines with {told(draft, 'city', city, words.CITIES, is_named=True)}"
    _terminal(draft, Number(path=new, value=value))
    draft.say(
        f"How many {what} does {path} have? Save only the number as {new}.",
        f"Count the {what} in {path} and write just the number into {new}.",
        f"Write the number of {what} in {path}, and nothing else, to the file {new}.",
    )


def grep_lines(draft: Draft) -> None:
    """Save the lines that contain a word."""
    path, rows = _lines(draft)
    word = draft.one(rows).split(",")[0]
    city = draft.one([row.split(",")[1] for row in rows if row.startswith(f"{word},")])
    said = told(draft, "word", word, words.PLAIN, is_named=True)
    final = [row for row in rows if row.startswith(f"{word},")]
    clause = ""
    if draft.level >= 3:
        final = [row for row in final if f",{city}," not in row]
        clause = f" but not {city}"
    if not final:
        final, clause = [row for row in rows if row.startswith(f"{word},")], ""
    new = draft.path("txt")
    _terminal(draft, Text(path=new, text="\n".join(final)))
    draft.say(
        f"Save the lines of {path} that contain {said}{clause} as {new}, in the same order.",
        f"Write each line of {path} with {said}{clause} to {new}. Keep their order.",
        f"Filter {path}: {new} should have just the lines that contain {said}{clause}.",
    )


def cut_column(draft: Draft) -> None:
    """Save one column of a file."""
    path, rows = _lines(draft)
    number = draft.one((1, 2, 3))
    name = ("first", "second", "third")[number - 1]
    said = told(draft, "column", name, ("first", "second", "third", "fourth", "fifth", "sixth",
                                        "seventh"))  # fmt: skip
    new = draft.path("txt")
    _terminal(draft, Text(path=new, text="\n".join(row.split(",")[number - 1] for row in rows)))
    column = said if draft.level == 4 else f"the {name} column"
    draft.say(
        f"{path} has columns separated by commas. Save only {column} as {new}.",
        f"Write {column} of the comma separated file {path} to {new}, one value per line.",
        f"Extract {column} from {path}, which separates columns with commas. The result goes to "
        f"{new}.",
    )


def take_part(draft: Draft) -> None:
    """Save a range of lines."""
    path, rows = _lines(draft)
    first = draft.rng.randint(2, len(rows) // 2)
    last = draft.rng.randint(first + 2, len(rows) - 1)
    others = [str(draft.rng.randint(first, len(rows))) for _ in range(12)]
    said = told(draft, "line number", str(last), others) if draft.level == 4 else f"line {last}"
    new = draft.path("txt")
    _terminal(draft, Text(path=new, text="\n".join(rows[first - 1 : last])))
    draft.say(
        f"Copy everything from line {first} to {said} of {path}, both included, into a new file "
        f"{new}.",
        f"Save the part of {path} from line {first} to {said}, inclusive, as {new}.",
        f"I only need line {first} up to and including {said} of {path}. Save them as {new}.",
    )


def make_archive(draft: Draft) -> None:
    """Pack files into a tar archive."""
    folder = f"Documents/{draft.one(words.FOLDERS)}"
    inside: dict[str, bytes] = {}
    for _ in range(draft.at(2, 4, 6, 8)):
        path = draft.path(draft.one(("txt", "csv")), folder)
        data = f"{words.code(draft.rng, 12)}\n".encode()
        inside[posixpath.basename(draft.add(path, data))] = data
    clause = ""
    if draft.level >= 3:
        for name in [name for name in inside if name.endswith(".csv")][1:]:
            del inside[name]
        gone = [
            p for p in draft.files if p.startswith(folder) and posixpath.basename(p) not in inside
        ]
        clause = f" except {words.listed([posixpath.basename(p) for p in gone])}" if gone else ""
    stem = draft.path("tar.gz", "Downloads")
    name = told(draft, "archive name", posixpath.basename(stem),
                [f"{stem}-{n}.tar.gz" for n, stem in enumerate(words.STEMS)])  # fmt: skip
    _terminal(draft, Archive(path=stem, files=inside))
    draft.say(
        f"Pack the files of {folder}{clause} into a gzipped tar archive. Its place is the folder "
        f"Downloads, its name {name}.",
        f"Make a .tar.gz archive of the files in {folder}{clause}. Save it in Downloads as {name}.",
        f"Archive all files in {folder}{clause} with tar and gzip. Save the archive in the folder "
        f"Downloads under {name}.",
    )


def unpack_archive(draft: Draft) -> None:
    """Unpack files of an archive into a folder."""
    target = draft.one(words.FOLDERS)
    names = draft.some(words.PLAIN, draft.at(2, 3, 5, 6))
    inside = {f"{name}.txt": f"{words.code(draft.rng, 12)}\n".encode() for name in names}
    path = draft.add(draft.path("tar", "Downloads"), tar(inside))
    draft.add(f"Documents/{target}/readme.md", "Unpacked files go here.\n")
    wanted = list(inside) if draft.level < 3 else sorted(inside)[:1]
    what = "everything in" if draft.level < 3 else f"only {wanted[0]} from"
    if draft.level == 4:
        what = f"only {told(draft, 'file', wanted[0], list(inside))}, which is packed in"
    for name in inside:
        place = f"Documents/{target}/{name}"
        draft.expect(Kept(path=place, data=inside[name]) if name in wanted else Gone(path=place))
    _terminal(draft)
    draft.say(
        f"Unpack {what} {path} into the folder Documents/{target}.",
        f"Extract {what} {path}. The folder Documents/{target} is where it belongs.",
        f"Get {what} {path} and put it into Documents/{target}.",
    )


def list_found(draft: Draft) -> None:
    """List the files that contain a code."""
    code, others = words.code(draft.rng), [words.code(draft.rng) for _ in range(6)]
    found: list[str] = []
    for folder in draft.some(words.FOLDERS, draft.at(2, 3, 5, 6)):
        for number in range(draft.at(2, 3, 4, 5)):
            path = draft.path("log", f"Documents/{folder}")
            has = draft.rng.random() < 0.3 or (not found and number == 0)
            lines = [*draft.some(words.LINES, 2), code if has else draft.one(others)]
            draft.add(path, "\n".join(lines) + "\n")
            found += [posixpath.basename(path)] if has else []
    new = draft.path("txt")
    said = told(draft, "code", code, others, is_named=True)
    _terminal(draft, Text(path=new, text="\n".join(sorted(found))))
    draft.say(
        f"Search Documents and its folders for .log files that contain {said}. Save their names "
        f"without folders, sorted by LC_ALL=C sort, one per line, as {new}.",
        f"Which .log files below Documents contain {said}? Write only their file names, one per "
        f"line in the order of LC_ALL=C sort, to {new}.",
    )


def decode_file(draft: Draft) -> None:
    """Decode a base64 file."""
    text = "\n".join([*draft.some(words.LINES, draft.at(1, 3, 5, 8)), words.code(draft.rng)]) + "\n"
    packed = base64.encodebytes(text.encode()).decode()
    paths = [draft.add(draft.path("b64"), packed)]
    for _ in range(draft.at(0, 1, 3, 4)):
        other = "\n".join(draft.some(words.LINES, 3)) + "\n"
        paths.append(draft.add(draft.path("b64"), base64.encodebytes(other.encode()).decode()))
    new = draft.path("txt")
    names = [posixpath.basename(path) for path in paths]
    said = told(draft, "file", names[0], [*names, "a.b64", "b.b64", "c.b64", "d.b64", "e.b64"],
                is_named=True)  # fmt: skip
    _terminal(draft, Text(path=new, text=text))
    draft.say(
        f"Decode {said} in Documents, which is base64, and save the text as {new}.",
        f"The content of {said} in Documents is base64. Save what it decodes to as {new}.",
        f"Turn the base64 of {said} in Documents back into text. The text belongs in {new}.",
    )


def checksum_file(draft: Draft) -> None:
    """Save the checksum of a file."""
    kind = draft.one(("sha256", "md5", "sha1"))
    paths = [
        draft.add(draft.path("bin"), draft.rng.randbytes(200)) for _ in range(draft.at(1, 3, 5, 7))
    ]
    names = [posixpath.basename(path) for path in paths]
    spare = [f"{stem}-{n}.bin" for n, stem in enumerate(words.STEMS, 41)]
    said = told(draft, "file", names[0], [*names, *spare], is_named=True)
    new = draft.path("txt")
    _terminal(draft, Text(path=new, text=hashlib.new(kind, draft.files[paths[0]]).hexdigest()))
    draft.say(
        f"Save the {kind.upper()} checksum of {said} in Documents as {new}: the hexadecimal "
        "digits only.",
        f"Work out the {kind.upper()} checksum of {said}, which is in Documents, and write just "
        f"its hexadecimal digits to {new}.",
    )


def run_script(draft: Draft) -> None:
    """Run a given script with an argument."""
    secret, argument = words.code(draft.rng, 8), draft.one(words.CITIES)
    script = (
        "#!/bin/sh\n# Usage: sh make-ticket.sh CITY FILE\n"
        f'printf "%s" "$1-{secret}" | sha256sum | cut -c 1-12 > "$2"\n'
    )
    path = draft.add("Documents/make-ticket.sh", script)
    ticket = hashlib.sha256(f"{argument}-{secret}".encode()).hexdigest()[:12]
    new = draft.path("txt")
    said = told(draft, "city", argument, words.CITIES, is_named=True)
    _terminal(draft)
    if draft.level >= 2:
        draft.open("mousepad", path)
    draft.expect(Text(path=new, text=ticket))
    draft.say(
        f"Run the shell script {path} with {said} and the output file {new}.",
        f"{path} writes a ticket for a city to a file. Use it for {said} and the file {new}.",
        f"With the help of the script {path}, make a ticket for {said} in the file {new}.",
    )


def rename_many(draft: Draft) -> None:
    """Change the ending of many files."""
    old, new = draft.some(("jpeg", "text", "old", "data"), 2)
    paths = [draft.path(old) for _ in range(draft.at(3, 8, 14, 20))]
    for path in paths:
        data = f"{words.code(draft.rng)}\n".encode()
        draft.add(path, data)
        draft.expect(*moved(path, f"{path.removesuffix(old)}{new}", data))
    for _ in range(draft.at(1, 2, 4, 6)):
        draft.add(draft.path("md"), f"{words.code(draft.rng)}\n")
    said = told(draft, "ending", f".{new}", [f".{end}" for end in ("jpeg", "text", "old", "data",
                "raw", "org", "new", "out")], is_named=True)  # fmt: skip
    _terminal(draft)
    sample = posixpath.basename(paths[0]).removesuffix(f".{old}")
    draft.say(
        f"Change the ending of every .{old} file in Documents to {said}, for example from "
        f"{sample}.{old}.",
        f"All files in Documents that end in .{old} should have {said} instead ({sample}.{old} is "
        "one of them).",
    )


def join_files(draft: Draft) -> None:
    """Join files in the order of their names."""
    stem = draft.one(words.STEMS)
    parts = {
        f"Documents/{stem}.part{n:02}": f"{words.code(draft.rng, 9)}\n" * draft.at(1, 2, 9, 20)
        for n in range(1, draft.at(3, 5, 9, 14))
    }
    for path in draft.some(list(parts), len(parts)):
        draft.add(path, parts[path])
    new = draft.path("txt", "Downloads")
    names = [f"{word}-{n}.txt" for n, word in enumerate(words.PLAIN)]
    said = told(draft, "file name", posixpath.basename(new), names)
    _terminal(draft, Text(path=new, text="".join(parts.values())))
    last = posixpath.basename(list(parts)[-1])
    draft.say(
        f"Join the files {stem}.part01, {stem}.part02 and so on from Documents in this order. "
        f"Save the result in Downloads as {said}.",
        f"Documents has a file in parts, from {stem}.part01 to {last}. Put them together and save "
        f"the whole in Downloads under {said}.",
    )


FAMILIES = families(
    "terminal",
    sort_file,
    count_words,
    grep_lines,
    cut_column,
    take_part,
    make_archive,
    unpack_archive,
    list_found,
    decode_file,
    checksum_file,
    run_script,
    rename_many,
    join_files,
)
