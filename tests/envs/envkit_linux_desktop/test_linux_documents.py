"""Hostile and broken documents: each costs the reward, and none costs the reader."""

import gzip
import io
import sys
import tarfile
import time
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

from envkit.errors import EnvFault
from envkit.grading import UngradedError
from envkit_linux_desktop.tasks import reader, reading
from envkit_linux_desktop.tasks.documents import docx, pages
from envkit_linux_desktop.tasks.sheets import sheet, xlsx
from envkit_sandbox import limited

BOOK = xlsx([sheet("Stock", [("Item", "Price"), ("Mugs", 4)])])
PAGES = docx(pages("The first paragraph.", "The second."))
DECK = "xl/worksheets/sheet1.xml"


def _with_part(data: bytes, name: str, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a package with one part replaced."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(stream, "w", method) as new,
    ):
        for entry in old.infolist():
            new.writestr(entry.filename, content if entry.filename == name else old.read(entry))
    return stream.getvalue()


def _laughs(root: str) -> bytes:
    names = [f"l{n}" for n in range(12)]
    entities = f'<!ENTITY {names[0]} "ha">' + "".join(
        f'<!ENTITY {new} "{f"&{old};" * 10}">' for old, new in pairwise(names)
    )
    return f"<!DOCTYPE x [{entities}]><{root}>&{names[-1]};</{root}>".encode()


def _merged() -> bytes:
    """Return a sheet whose one merged range has 17 billion cells."""
    with zipfile.ZipFile(io.BytesIO(BOOK)) as archive:
        part = archive.read(DECK).replace(
            b"</sheetData>",
            b'</sheetData><mergeCells count="1"><mergeCell ref="A1:XFD1048576"/></mergeCells>',
        )
    return _with_part(BOOK, DECK, part)


def _tar_bomb() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = 200 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    return stream.getvalue()


DEEP = b"<a>" * 400_000 + b"</a>" * 400_000
DEEP_SETTINGS = b"<property>" * 400_000 + b"</property>" * 400_000
HOSTILE = {
    "xlsx: empty": ("xlsx", lambda: b""),
    "xlsx: not a zip": ("xlsx", lambda: b"plain text"),
    "xlsx: cut short": ("xlsx", lambda: BOOK[: len(BOOK) // 2]),
    "xlsx: a docx": ("xlsx", lambda: PAGES),
    "xlsx: zip bomb": ("xlsx", lambda: _with_part(BOOK, DECK, bytes(200 << 20))),
    "xlsx: entities": ("xlsx", lambda: _with_part(BOOK, DECK, _laughs("worksheet"))),
    "xlsx: merged bomb": ("xlsx", _merged),
    "docx: not a zip": ("docx", lambda: b"\x00" * 5000),
    "docx: an xlsx": ("docx", lambda: BOOK),
    "docx: zip bomb": ("docx", lambda: _with_part(PAGES, "word/document.xml", bytes(200 << 20))),
    "docx: nested deep": ("docx", lambda: _with_part(PAGES, "word/document.xml", DEEP)),
    "docx: entities": ("docx", lambda: _with_part(PAGES, "word/document.xml", _laughs("document"))),
    "archive: not one": ("archive", lambda: b"plain text"),
    "archive: gzip bomb": ("archive", lambda: gzip.compress(b"x" * (300 << 20))),
    "archive: tar bomb": ("archive", _tar_bomb),
    "xfconf: not XML": ("xfconf", lambda: b"{}"),
    "xfconf: nested deep": ("xfconf", lambda: DEEP_SETTINGS),
    "xfconf: entities": ("xfconf", lambda: _laughs("channel")),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.slow
def test_hostile_documents_are_broken_and_bounded(name: str) -> None:
    kind, make = HOSTILE[name]
    data = make()
    begun = time.monotonic()
    assert reading.read_document(kind, data) is None
    assert time.monotonic() - begun < 3 * reader.SECONDS


@pytest.mark.slow
def test_deep_nesting_in_a_sheet_reads_as_no_cells() -> None:
    book = reading.read_document("xlsx", _with_part(BOOK, DECK, DEEP))
    assert book["sheets"][0]["cells"] == {}


def test_sound_documents_are_read_in_their_own_process() -> None:
    book = reading.read_document("xlsx", BOOK)
    assert book["sheets"][0]["cells"]["B2"]["value"] == 4
    text = reading.read_document("docx", PAGES)
    assert [row["spans"][0]["text"] for row in text["paragraphs"]] == [
        "The first paragraph.",
        "The second.",
    ]


def test_failing_reader_is_an_error_and_not_a_broken_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "reader.py"
    program.write_text("raise ModuleNotFoundError('no openpyxl')\n")
    monkeypatch.setattr(reading, "_READER", program)
    with pytest.raises(UngradedError, match="no openpyxl"):
        reading.read_document("xlsx", BOOK)


def test_missing_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ImportError):
        reader.read("xlsx", BOOK)


def test_hung_reader_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "reader.py"
    program.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(reading, "_READER", program)
    monkeypatch.setattr(limited, "_DEADLINE", 0.5)
    with pytest.raises(EnvFault, match="did not end"):
        reading.read_document("xlsx", BOOK)
