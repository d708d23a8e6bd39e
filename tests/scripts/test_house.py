"""The numbers of the layout, on a small checkout."""

import importlib.util
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


def test_core_names_no_plugin(house: ModuleType) -> None:
    assert house.plugin_names(ROOT) == []
