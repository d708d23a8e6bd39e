"""Parts of task files in OSWorld's schema, and documents as their programs save them."""

import io
from typing import Any

import openpyxl

FILES = "https://files.example"


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


def recorded(code: str) -> dict[str, Any]:
    """Return a step that was recorded as a program."""
    return step("execute", command=["python", "-c", f"import pyautogui; import time; {code}"])


def opened(url: str, path: str) -> list[dict[str, Any]]:
    """Return the steps that put a file in the home folder and open it."""
    path = f"/home/user/{path}"
    return [step("download", files=[{"url": url, "path": path}]), step("open", path=path)]


def compared(function: str, path: str, gold: str, **options: Any) -> dict[str, Any]:
    """Return the part of an evaluator that compares a final file with a right one."""
    name = path.rpartition("/")[2]
    return {
        "func": function,
        "result": {"type": "vm_file", "path": f"/home/user/{path}", "dest": name},
        "expected": {"type": "cloud_file", "path": gold, "dest": f"gold_{name}"},
        "options": options,
    }


SAME_DATA = {"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}
"""A rule of `compare_table`."""


def saved(made: Any) -> bytes:
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


def workbook(*rows: tuple[str, float]) -> bytes:
    """Return a list of prices."""
    book: Any = openpyxl.Workbook()
    for row in (("item", "price"), ("tea", 3), *rows):
        book.active.append(row)
    return saved(book)
