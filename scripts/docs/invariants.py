# ruff: noqa: T201  # a script prints what it found
"""Check that every test named in docs/concepts/invariants.md exists.

    python scripts/docs/invariants.py

A test is written as `path::name`, with a path relative to `tests`. Exit status: 0 all exist,
1 otherwise.
"""

import ast
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "concepts" / "invariants.md"
_TEST: Final = re.compile(r"`([\w/]+\.py)::(\w+)`")
_RULE: Final = re.compile(r"\| (?!---|rule\b|file\b|all\b|`)")
"""A row of a table of rules; the mutation table has files and their sum."""


def main() -> int:
    """Print every missing test and return the exit status."""
    text = PAGE.read_text(encoding="utf-8")
    problems = [problem for name in _TEST.finditer(text) if (problem := _problem(*name.groups()))]
    bare = [line for line in text.splitlines() if _RULE.match(line) and not _TEST.search(line)]
    problems += [f"the rule names no test: {line}" for line in bare]
    for problem in problems:
        print(f"{PAGE.relative_to(ROOT)}: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _problem(path: str, name: str) -> str | None:
    file = ROOT / "tests" / path
    if not file.is_file():
        return f"tests/{path} does not exist"
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    return None if name in names else f"tests/{path} has no test {name}"


if __name__ == "__main__":
    sys.exit(main())
