"""Packages list what they offer, and import it on first use."""

import contextlib
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import envkit
from envkit.errors import MissingDependencyError

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
