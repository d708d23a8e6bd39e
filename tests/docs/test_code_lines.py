"""The sizes that our pages state are counted by one rule."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "code_lines.py"))
count: Callable[[str], int] = SCRIPT["code_lines"]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("x = 1\n", 1),
        ("\n  \n# comment\n    # indented comment\nx = 1  # counts\n", 1),
        ('"""Module."""\n\nx = 1\n', 1),
        ('def f():\n    """Summary.\n\n    Details.\n    """\n    return 1\n', 2),
        ('class A:\n    x: int = 0\n    """What it is."""\n', 2),
        ('x = """\ntext\n\n# not a comment, but it starts like one\n"""\n', 3),
        ('f("""\ntext\n""")\n', 3),
        ("b'bytes'\n1\n...\n", 3),
        ("x = (\n    1,\n    2,\n)\n", 4),
        ("x = '\\x0c'\n\x0c\n'text\\\nmore'\ny = 2\n", 2),
        ('x = """\u2028"""\n"text"\ny = 1\n', 2),
        ("x = 1\r\n'text'\r\ny = 2\r\n", 2),
    ],
)
def test_code_lines_exclude_blanks_comments_and_string_statements(source: str, lines: int) -> None:
    assert count(source) == lines


def test_code_lines_cover_the_core_and_each_package(tmp_path: Path) -> None:
    for name in ("envkit/a.py", "envkit/inner/b.py", "envs/one/a.py", "adapters/two/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "envkit" / "page.js").write_text("let x = 1;\n", encoding="utf-8")

    assert SCRIPT["packages"](tmp_path) == {"envkit": 2, "adapters/two": 1, "envs/one": 1}
