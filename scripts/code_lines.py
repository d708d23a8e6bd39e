"""Count the code lines of each package.

    python scripts/code_lines.py [--root CHECKOUT] [--json]

A line counts unless it is blank, starts with `#` after its indentation, or belongs to a statement
that is only a string, such as a docstring. Every size of the project in its pages comes from here.
"""

import argparse
import ast
import json
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SHELVES: Final = ("envs", "adapters")
CORE: Final = "envkit"


def code_lines(source: str) -> int:
    """Return the number of code lines of a Python file.

    Raises:
        SyntaxError: The source is not valid Python.
    """
    skipped = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    # Not `splitlines`: Python's line numbers do not count form feeds and Unicode separators.
    lines = (line.strip() for line in source.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return sum(
        bool(line) and not line.startswith("#") and number not in skipped
        for number, line in enumerate(lines, 1)
    )


def packages(root: Path) -> dict[str, int]:
    """Return the code lines of the core and of each package in `envs` and `adapters`.

    Args:
        root: The checkout.
    """
    shelves = [path for shelf in SHELVES for path in (root / shelf).glob("*/") if path.is_dir()]
    folders = [root / CORE, *sorted(shelves)]
    counted = {
        folder.relative_to(root).as_posix(): sum(
            code_lines(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")
        )
        for folder in folders
    }
    return {name: lines for name, lines in counted.items() if lines}  # a cache is not a package


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if not (options.root / CORE).is_dir():
        parser.error(f"--root needs a checkout with a folder {CORE!r}, got {str(options.root)!r}")
    found = packages(options.root)
    totals = {shelf: _total(found, shelf) for shelf in (CORE, *SHELVES)}
    totals["total"] = sum(totals.values())
    if options.json:
        sys.stdout.write(json.dumps({"packages": found, **totals}, indent=2) + "\n")
        return
    for name, lines in {**found, **totals}.items():
        sys.stdout.write(f"{name:32} {lines:8,}\n")


def _total(found: dict[str, int], shelf: str) -> int:
    return sum(lines for name, lines in found.items() if name.partition("/")[0] == shelf)


if __name__ == "__main__":
    main()
