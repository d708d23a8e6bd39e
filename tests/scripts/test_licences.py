"""The page of licences names every dependency and every shipped file."""

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def licences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return the script, for a checkout without shipped files."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "docs"))
    monkeypatch.delitem(sys.modules, "licences", raising=False)
    monkeypatch.setattr(sys, "argv", ["licences.py", "--check"])
    script = importlib.import_module("licences")
    for name in ("pyproject.toml", "constraints.txt", "docs/licences.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(
        ROOT / "scripts/contracts",
        tmp_path / "scripts/contracts",
        ignore=shutil.ignore_patterns("*.py", "results", "__pycache__"),
    )
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "SHIPPED", ())
    monkeypatch.setattr(script, "PAGE", tmp_path / "docs" / "licences.md")
    return script


def test_this_checkout_is_complete(licences: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert licences.unlicensed_files() == []
    ours, theirs = licences.wanted()
    assert ours | theirs == licences.entries(licences.PAGE.read_text("utf-8")).keys()


def test_new_dependency_needs_an_entry(
    licences: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "pyproject.toml"
    text = project.read_text("utf-8")
    project.write_text(text.replace('yaml = ["', 'yaml = ["Not_Licensed>=1", "'), "utf-8")
    assert licences.main() == 1
    assert capsys.readouterr().err.startswith("not-licensed has no licence: install it")


def test_removed_dependency_leaves_the_page(
    licences: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constraints = tmp_path / "constraints.txt"
    kept = [line for line in constraints.read_text("utf-8").splitlines() if "zss" not in line]
    constraints.write_text("\n".join(kept), "utf-8")
    assert licences.main() == 1
    assert "licences.md is out of date" in capsys.readouterr().err


def test_new_shipped_file_needs_an_entry(
    licences: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(licences, "SHIPPED", (("envkit/gone.ttf", "MIT", "a font"),))
    (tmp_path / "envkit").mkdir()
    for name in ("font.ttf", "module.py", "py.typed"):
        (tmp_path / "envkit" / name).touch()
    assert licences.unlicensed_files() == [
        "envkit/gone.ttf in SHIPPED matches no file: remove the line",
        "envkit/font.ttf has no licence: add it to SHIPPED",
    ]


@pytest.mark.parametrize(
    ("declared", "licence"),
    [
        ({"License-Expression": "MIT"}, "MIT"),
        ({"License": "Apache License, Version 2.0"}, "Apache-2.0"),
        ({"License": "UNKNOWN", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"License": "MIT License\n\nCopyright (c) 2022\n\nPermission is hereby granted"}, "MIT"),
        ({"Classifier": "License :: OSI Approved"}, ""),
        ({}, ""),
    ],
)
def test_licence_is_read_as_packages_declare_it(
    licences: Any, declared: dict[str, str], licence: str
) -> None:
    class Metadata:
        def get_all(self, name: str) -> list[str] | None:
            return [declared[name]] if name in declared else None

    assert licences.licence_of(Metadata()) == licence
