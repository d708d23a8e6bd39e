"""Turn one untrusted document on stdin into JSON on stdout; run as a program of its own.

    python reader.py KIND < document

Prints {"model": ...}, or {"broken": reason} if the parser refuses the document. The process limits
its own memory and processor time first, so a document that expands without end ends this process
and nothing else. It imports none of envkit, which keeps its start short.
"""

import contextlib
import io
import json
import resource
import sys
import tarfile
import zipfile
from typing import Any

SECONDS = 20
"""Processor time for one document."""
MEMORY = 768 << 20
EXPANDED = 64 << 20
"""Maximum bytes in all the parts of one archive."""
MEMBERS = 500
CELLS = 20_000


class BrokenError(Exception):
    """The document cannot be read, or is larger than any task needs."""


def limit() -> None:
    """Limit memory and processor time of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def check_zip(data: bytes) -> None:
    """Refuse archives that expand too far; zipfile never returns more than a declared size."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    if len(entries) > MEMBERS or sum(entry.file_size for entry in entries) > EXPANDED:
        raise BrokenError(f"{len(entries)} parts, or more than {EXPANDED} bytes")


def cell_model(shown: Any, cell: Any) -> dict[str, Any]:  # noqa: ANN401  # untyped library
    """Return one cell; dates and errors become text."""
    is_formula = cell.data_type == "f"
    formula = cell.value if is_formula else ""
    value = shown if isinstance(shown, str | int | float | bool | None) else str(shown)
    is_filled = cell.fill.fill_type == "solid"
    colour = cell.fill.start_color.rgb if is_filled else ""
    return {
        "value": value,
        "formula": formula if isinstance(formula, str) else getattr(formula, "text", "") or "",
        "bold": bool(cell.font.b),
        "italic": bool(cell.font.i),
        "number_format": cell.number_format,
        "fill": colour[-6:] if isinstance(colour, str) else "",
        "align": cell.alignment.horizontal or "",
    }


def frozen_cell(page: Any) -> str:  # noqa: ANN401  # untyped library
    """Return the cell right below the frozen part; the file's own corner moves when one scrolls."""
    pane = page.sheet_view.pane
    if pane is None or not str(pane.state).startswith("frozen"):
        return ""
    return f"{'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[int(pane.xSplit or 0)]}{int(pane.ySplit or 0) + 1}"


def workbook(data: bytes) -> dict[str, Any]:
    """Return sheets with cells by reference."""
    import openpyxl

    check_zip(data)
    formulas = openpyxl.load_workbook(io.BytesIO(data))
    values = openpyxl.load_workbook(io.BytesIO(data), data_only=True)
    sheets: list[dict[str, Any]] = []
    for page in formulas.worksheets:
        cells = page._cells  # iterating rows would create every cell up to the last one
        if len(cells) > CELLS:
            raise BrokenError(f"{len(cells)} cells")
        shown = values[page.title]._cells
        sheets.append(
            {
                "name": page.title,
                "frozen": frozen_cell(page),
                "cells": {
                    cell.coordinate: cell_model(shown[place].value, cell)
                    for place, cell in cells.items()
                    if cell.value is not None
                },
            }
        )
    return {"sheets": sheets}


def span_model(run: Any) -> dict[str, Any]:  # noqa: ANN401  # untyped library
    """Return one run of text with its direct formatting."""
    return {
        "text": run.text,
        "bold": bool(run.bold) or run.style.name == "Strong",
        "italic": bool(run.italic) or run.style.name == "Emphasis",
        "underline": bool(run.underline),
        "size": run.font.size.pt if run.font.size is not None else None,
    }


def paragraph_model(paragraph: Any) -> dict[str, Any]:  # noqa: ANN401  # untyped library
    """Return one paragraph."""
    alignment = paragraph.alignment
    runs = [run for item in paragraph.iter_inner_content() for run in getattr(item, "runs", [item])]
    return {
        "style": paragraph.style.name,
        "align": "left" if alignment is None else alignment.name.lower().replace("start", "left"),
        "spans": [span_model(run) for run in runs],
    }


def document(data: bytes) -> dict[str, Any]:
    """Return paragraphs, tables and page settings of a text document."""
    import docx

    check_zip(data)
    opened = docx.Document(io.BytesIO(data))
    section = opened.sections[0]
    ends = {"header": section.header, "footer": section.footer}
    return {
        "paragraphs": [paragraph_model(paragraph) for paragraph in opened.paragraphs],
        "tables": [
            [[cell.text for cell in row.cells] for row in table.rows] for table in opened.tables
        ],
        "landscape": (section.page_width or 0) > (section.page_height or 0),
        **{
            name: ""
            if end.is_linked_to_previous
            else "\n".join(paragraph.text for paragraph in end.paragraphs)
            for name, end in ends.items()
        },
    }


def archive(data: bytes) -> dict[str, Any]:
    """Return the regular files of a tar or zip archive as Latin-1 text."""
    found: dict[str, str] = {}
    total = 0
    if data[:2] == b"PK":
        check_zip(data)
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            for entry in packed.infolist():
                if not entry.is_dir():
                    found[entry.filename] = packed.read(entry).decode("latin-1")
        return {"files": found}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|*") as packed:
        for count, member in enumerate(packed):
            total += member.size
            if total > EXPANDED or count >= MEMBERS:
                raise BrokenError("more than any task needs")
            handle = packed.extractfile(member) if member.isreg() else None
            if handle is not None:
                found[member.name] = handle.read().decode("latin-1")
    return {"files": found}


def settings(data: bytes) -> dict[str, Any]:
    """Return properties of an Xfconf channel: path -> [type, value]."""
    from xml.etree import ElementTree

    found: dict[str, list[str]] = {}
    path: list[str] = []
    for event, element in ElementTree.iterparse(io.BytesIO(data), ("start", "end")):
        if element.tag != "property":
            continue
        if event == "end":
            path.pop()
            continue
        path.append(element.get("name") or "")
        if len(path) > 40:
            raise BrokenError("nested more than 40 deep")
        found["/" + "/".join(path)] = [element.get("type") or "", element.get("value") or ""]
    return {"properties": found}


KINDS = {"xlsx": workbook, "docx": document, "archive": archive, "xfconf": settings}


def read(kind: str, data: bytes) -> dict[str, Any]:
    """Parse a document without limits: the last step of the program, and of tests."""
    try:
        return {"model": KINDS[kind](data)}
    except ImportError:  # a missing package says nothing about the document
        raise
    except Exception as error:  # noqa: BLE001  # parsers of hostile bytes raise anything
        return {"broken": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    """Read the document on stdin under limits and print its model."""
    limit()
    answer = b'{"broken": "more memory than any task needs"}'
    with contextlib.suppress(MemoryError):  # also while a failure is being described
        answer = json.dumps(read(sys.argv[1], sys.stdin.buffer.read())).encode()
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
