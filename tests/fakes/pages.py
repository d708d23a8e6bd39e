"""The pages of the documentation, as tests read them."""

import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

_FILE = re.compile(r"# (\w+\.py)\n")
_MANY = re.compile(r"(?<= -n )\d{2,}(?= )")
"""Of episodes that the page's figures need, not its commands."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


def python_blocks(page: Path) -> list[str]:
    """The Python examples of a page, in order."""
    return [text for kind, text in blocks(page) if kind == "python"]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block of a page that names its language, in order."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def run_page(page: Path, folder: Path) -> int:
    """Run the examples of a page in order and return how many there were.

    Python blocks share their names, as a reader's session does; bash blocks run in the folder,
    without their lines that install something, and with eight episodes in place of ten or more. A
    Python block that begins with a file's name is written to the folder as that file. A block of
    text behind a Python block is what that prints.
    """
    space: dict[str, object] = {"__name__": "docs"}
    printed, count = "", 0
    for number, (kind, text) in enumerate(blocks(page)):
        if kind == "python" and (named := _FILE.match(text)):
            (folder / named[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            with redirect_stdout(StringIO()) as out:
                exec(compile(text, f"{page.name} block {number}", "exec"), space)
            printed = out.getvalue()
            assert printed or "print(" not in text
        elif kind == "bash":
            _run_shell(text, folder)
        elif kind == "text":
            assert printed.rstrip() == text.rstrip()
        else:
            continue
        count += 1
    return count


def _run_shell(text: str, folder: Path) -> None:
    lines = [line for line in text.splitlines() if not line.startswith("pip install")]
    script = _MANY.sub("8", "\n".join(lines))
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
