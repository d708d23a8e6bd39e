"""scripts/contracts/moved.py names flags and examples that a release no longer has."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "contracts"))
    for name in ("moved", "run", "environment"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("moved")


@pytest.fixture
def checkout(tmp_path: Path, moved: Any) -> Path:
    """Return a package that knows every flag of the launch files, with all examples of the page."""
    (tmp_path / "skyrl").mkdir()
    text = (ROOT / "examples/geo3k/skyrl/run.sh").read_text()
    (tmp_path / "skyrl" / "flags.py").write_text(text)
    for one in ("geometry3k/geometry3k_entrypoint.py", "geometry3k/run_geometry3k.sh"):
        path = tmp_path / "examples/train" / one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for one in ("search/run_search.sh", "text_to_sql/run.sh"):
        path = tmp_path / "examples/train" / one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def test_moved_finds_nothing_in_a_release_that_has_everything(moved: Any, checkout: Path) -> None:
    assert moved._settings("skyrl", checkout / "skyrl") == []
    assert moved._examples("skyrl", checkout / "skyrl") == []


def test_moved_names_a_setting_and_an_example_that_are_gone(moved: Any, checkout: Path) -> None:
    file = checkout / "skyrl" / "flags.py"
    file.write_text(file.read_text().replace("remove_microbatch_padding", "pad"))
    (checkout / "examples/train/search/run_search.sh").unlink()
    assert moved._settings("skyrl", checkout / "skyrl") == [
        "run.sh sets 'remove_microbatch_padding', which is gone"
    ]
    assert moved._examples("skyrl", checkout / "skyrl") == [
        "the page names examples/train/search/run_search.sh, which is gone"
    ]
