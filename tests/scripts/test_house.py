"""The numbers of the layout and the sizes that pages state, counted by one rule."""

import importlib.util
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "pyproject.toml": '[project.entry-points."envkit.sinks"]\ntable = "envkit_table:Table"\n',
    "envkit/__init__.py": "from envkit.top import start\n",
    "envkit/top.py": "import envkit.middle\nfrom typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    import envkit_table\n"
    "def start(a, b, c, d, e, f, *, g, h): import envkit_table\n",
    "envkit/middle.py": '"""Not a name: envkit_table."""\ntry:\n    from envkit import low\n'
    "except ImportError:\n    low = None\n",
    "envkit/low.py": "class Low:\n    def __init__(self, a, b, c, d, e, f, g): ...\n",
    "envs/envkit_table/__init__.py": "import envkit\nSINK = 'table'\n",
}


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "scripts" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _checkout(folder: Path, **more: str) -> Path:
    for name, text in (FILES | more).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_numbers_of_a_checkout(house: ModuleType, tmp_path: Path) -> None:
    known = house.modules(_checkout(tmp_path))
    graph = {name: house.imports(file, name=name, known=known) for name, file in known.items()}
    chain = ["envkit_table", "envkit", "envkit.top", "envkit.middle", "envkit.low"]
    assert house.deepest_chain(graph) == chain
    assert house.many_parameters(known) == [(8, "envkit.top.start")]
    assert house.one_importer(graph, known) == ["envkit.low", "envkit.middle", "envkit.top"]


def test_modules_in_a_circle_are_one_link(house: ModuleType) -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert house.deepest_chain(graph) == ["a", "b", "d"]


@pytest.mark.parametrize("text", ["open('table')", "load('envkit_table:Table')"])
def test_plugin_that_the_core_names_is_found(text: str, house: ModuleType, tmp_path: Path) -> None:
    assert house.plugin_names(_checkout(tmp_path)) == []
    (found,) = house.plugin_names(_checkout(tmp_path, **{"envkit/low.py": text}))
    assert found.startswith("envkit/low.py:1: ")


def test_long_file_is_found(house: ModuleType, tmp_path: Path) -> None:
    root = _checkout(tmp_path, **{"tests/even.py": "\n" * 600, "tests/odd.py": "\n" * 601})
    assert house.long_files(root) == ["tests/odd.py: 601"]


def test_checkout_with_a_long_chain_and_many_parameters_is_refused(
    house: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    links = {f"envkit/link{n}.py": f"import envkit.link{n + 1}\n" for n in range(24)}
    root = _checkout(tmp_path, **links, **{"envkit/link24.py": "x = 1\n"})
    monkeypatch.setattr(sys, "argv", ["house.py", "--root", str(root)])
    with pytest.raises(SystemExit, match="True"):
        house.main()
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong: ")]
    assert [line.partition(">")[0].strip() for line in wrong] == [
        "wrong: 8 envkit.top.start",
        "wrong: an import chain of 25 links: envkit.link0",
    ]


def test_core_names_no_plugin(house: ModuleType) -> None:
    assert house.plugin_names(ROOT) == []


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
