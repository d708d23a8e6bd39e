"""The reference lists every public name, each on exactly one page."""

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
CORE = sorted((ROOT / "envkit").glob("*/__init__.py"))
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.M)
INTERNAL = {"envkit.cli", "envkit.scaffold", "envkit.threads"}
"""Packages that nobody imports from."""
ADAPTERS = (
    "envkit_certify",
    "envkit_chat",
    "envkit_conformance",
    "envkit_eval",
    "envkit_exchange",
    "envkit_judges",
    "envkit_miles",
    "envkit_notebook",
    "envkit_remote",
    "envkit_sglang",
    "envkit_sinks",
    "envkit_skyrl",
    "envkit_slime",
    "envkit_transformers",
    "envkit_trl",
    "envkit_verl",
    "envkit_vllm",
)

SUBPACKAGES = ("envkit_certify.audit.", "envkit_certify.golden.")
"""Imported by their own names."""


def directives() -> list[str]:
    return [name for page in PAGES for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]


def public_names() -> dict[str, str]:
    """Where each public name is defined -> what users import; without the version."""
    packages = ["envkit", *(f"envkit.{path.parent.name}" for path in CORE)]
    found: dict[str, str] = {}
    for package in packages:
        if package in INTERNAL:
            continue
        module = importlib.import_module(package)
        for name in module.__all__:
            if name != "__version__":
                found.setdefault(identity(package, name), f"{package}.{name}")
    return found


def identity(package: str, name: str) -> str:
    """Return one text for all places from which the same thing can be imported."""
    value = getattr(importlib.import_module(package), name)
    home, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    return f"{home}.{own}" if home and own == name else f"{package}.{name}"


def core_directives() -> list[str]:
    return [name for name in directives() if name.startswith("envkit.")]


def test_every_public_name_of_the_core_has_its_place() -> None:
    listed = {identity(*name.rsplit(".", 1)) for name in core_directives()}
    assert sorted(public for place, public in public_names().items() if place not in listed) == []


def test_every_entry_can_be_imported() -> None:
    for name in core_directives():
        package, _, own = name.rpartition(".")
        assert hasattr(importlib.import_module(package), own), name


def test_no_name_is_listed_twice() -> None:
    places = [identity(*name.rsplit(".", 1)) for name in core_directives()]
    others = [name for name in directives() if not name.startswith("envkit.")]
    assert [name for name, count in Counter([*places, *others]).items() if count > 1] == []


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapters_are_listed_in_full(adapter: str) -> None:
    source = (ROOT / "adapters" / adapter / "__init__.py").read_text(encoding="utf-8")
    (names,) = re.findall(r"^__all__ = \[(.*?)\]", source, re.S | re.M)
    public = set(re.findall(r'"(\w+)"', names))
    listed = {
        name.rpartition(".")[2]
        for name in directives()
        if name.startswith(f"{adapter}.") and not name.startswith(SUBPACKAGES)
    }
    assert listed == public


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_says_what_it_lists(page: Path) -> None:
    title, sentence = page.read_text(encoding="utf-8").split("\n\n")[:2]
    assert title.startswith("# ")
    assert sentence.rstrip().endswith(".")
    assert not sentence.startswith((":::", "#"))
