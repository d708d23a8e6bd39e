"""What `import envkit` and its packages offer, on first use, and what they must not import."""

import contextlib
import importlib
import re
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from fakes.processes import run_python

import envkit
from envkit.errors import MissingDependencyError

PROMISED = {
    "Env",
    "EnvFault",
    "Image",
    "ToolSpec",
    "check_env",
    "make",
    "register",
    "registry",
    "spec",
    "tool",
}
HEAVY = (
    "aiohttp",
    "asyncio",
    "hypothesis",
    "jsonschema",
    "pyarrow",
    "rich",
    "tiktoken",
    "tokenizers",
    "torch",
    "transformers",
    "typer",
)


run = partial(run_python, "-W", "error", "-c")


def test_public_names_are_sorted_importable_and_promised() -> None:
    assert envkit.__all__ == sorted(envkit.__all__)
    assert len(envkit.__all__) <= 20
    assert set(envkit.__all__) >= PROMISED
    for name in envkit.__all__:
        assert getattr(envkit, name) is not None


def test_public_names_are_what_a_star_import_gives() -> None:
    space: dict[str, object] = {}
    exec("from envkit import *", space)

    assert sorted(set(space) - {"__builtins__"}) == sorted(envkit.__all__)


def test_import_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, envkit\n"
        f"heavy = {HEAVY!r}\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "print([name for name in sys.modules if name.startswith('envkit_')])"
    )

    assert run(code).split() == ["[]", "[]"]


def test_packages_are_imported_on_first_use() -> None:
    code = (
        "import sys, envkit\n"
        "assert 'envkit.rollout' not in sys.modules\n"
        "print(envkit.rollout.__name__, envkit.tokens.__name__)\n"
        "try:\n"
        "    envkit.no_such_name\n"
        "except AttributeError as error:\n"
        "    print(error)"
    )

    assert run(code).splitlines() == [
        "envkit.rollout envkit.tokens",
        "module 'envkit' has no attribute 'no_such_name'",
    ]


def test_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert envkit.__version__ == version("envkit-rl")


ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "envkit", *(ROOT / "envs").iterdir(), *(ROOT / "adapters").iterdir())
LAZY = sorted(
    path.parent.relative_to(folder.parent).as_posix().replace("/", ".")
    for folder in FOLDERS
    for path in folder.rglob("__init__.py")
    if "__getattr__" in path.read_text(encoding="utf-8")
)


def public(package: ModuleType) -> set[str]:
    return {name for name in dir(package) if not name.startswith("_")}


def test_packages_with_lazy_names_are_found() -> None:
    assert {"envkit", "envkit_certify", "envkit_gymnasium", "envkit_trl"} <= set(LAZY)


@pytest.mark.parametrize("name", LAZY)
def test_every_name_in_dir_can_be_asked_for(name: str) -> None:
    package = importlib.import_module(name)
    for attribute in dir(package):
        # A trainer that is not installed: the error has the line that installs it.
        with contextlib.suppress(MissingDependencyError):
            assert hasattr(package, attribute), attribute


@pytest.mark.parametrize("name", LAZY)
def test_dir_lists_what_the_package_offers_and_nothing_else(name: str) -> None:
    package = importlib.import_module(name)
    modules = documented_modules() if package is envkit else set[str]()

    offered = {one for one in package.__all__ if not one.startswith("_")}
    assert public(package) == offered | modules
    assert dir(package) == sorted(set(dir(package)))


@pytest.mark.parametrize("name", LAZY)
def test_unknown_name_is_an_attribute_error(name: str) -> None:
    package = importlib.import_module(name)
    for attribute in ("no_such_name", "Any_", "__wrapped__"):
        assert not hasattr(package, attribute)


@pytest.mark.parametrize("module", sorted(envkit._MODULES))
def test_core_modules_are_attributes(module: str) -> None:
    assert getattr(envkit, module) is importlib.import_module(f"envkit.{module}")


def documented_modules() -> set[str]:
    """Return the modules whose names the reference documents."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return set(re.findall(r"^::: envkit\.([a-z_]+)\.", text, flags=re.M))
