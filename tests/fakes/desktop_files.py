"""Final files of a desktop task, and changes of them that must each cost the reward."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace

import docx
import openpyxl
from fakes.osworld import saved

from envkit_linux_desktop.tasks.checks import Check
from envkit_linux_desktop.tasks.scenario import Scenario
from envkit_linux_desktop.tasks.sheets import Workbook

Files = dict[str, bytes]


def _workbook(data: bytes) -> bytes:
    """Return the workbook with one more cell."""
    book = openpyxl.load_workbook(io.BytesIO(data))
    book.worksheets[-1]["J40"] = "stray"
    return saved(book)


def _document(data: bytes) -> bytes:
    """Return the document with one more paragraph."""
    document = docx.Document(io.BytesIO(data))
    document.add_paragraph("Stray.")
    return saved(document)


def _spoilt(path: str, data: bytes) -> bytes:
    """Return the file with a little too much in it."""
    if path.endswith(".xlsx"):
        return _workbook(data)
    if path.endswith(".docx"):
        return _document(data)
    if path.endswith((".tar.gz", ".gz")):
        return data[: len(data) // 2]
    if path.endswith((".xml", "Bookmarks", "keyfile", "libfm.conf")):
        data = data.replace(b'"name": "', b'"name": "x')
        return data.replace(b"true", b"maybe").replace(b"=", b"=7").replace(b'value="', b'value="7')
    return data + b"stray\n"


def near_misses(scenario: Scenario) -> Iterator[tuple[str, Files]]:
    """Yield final files that miss the goal in one respect, each with its name."""
    solved = scenario.solve()
    decided = {path for check in scenario.checks for path in check.paths}
    for path in sorted(decided & solved.keys()):
        data = solved[path]
        rest = {name: content for name, content in solved.items() if name != path}
        yield f"{path} is missing", rest
        yield f"{path} has a stray part", {**rest, path: _spoilt(path, data)}
        yield f"{path} is broken", {**rest, path: b"PK\x03\x04 broken"}
        folder, _, name = path.rpartition("/")
        yield f"{path} has another name", {**rest, f"{folder}/wrong-{name}": data}
        if path not in scenario.files or scenario.files[path] != data:
            before = {path: scenario.files[path]} if path in scenario.files else {}
            yield f"{path} is as before", {**rest, **before}
    for path in sorted(scenario.files.keys() - solved.keys()):
        yield f"{path} is still there", {**solved, path: scenario.files[path]}


def renamed(files: Mapping[str, bytes], old: str, new: str) -> Files:
    """Return the files with one path changed."""
    return {new if path == old else path: data for path, data in files.items()}


def without_formulas(scenario: Scenario) -> Scenario:
    """Return the scenario whose solution types numbers in place of formulas."""
    checks: list[Check] = []
    for check in scenario.checks:
        if not isinstance(check, Workbook):
            checks.append(check)
            continue
        plain = tuple(
            replace(page, cells={k: replace(c, formula="") for k, c in page.cells.items()})
            for page in check.book
        )
        checks.append(replace(check, book=plain))
    return replace(scenario, checks=tuple(checks))
