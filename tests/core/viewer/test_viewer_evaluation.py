"""The report of an evaluation: what its single file holds."""

import json
from pathlib import Path

import pytest
from fakes.command import run_envkit
from fakes.evaluations import write_evaluation_folder
from fakes.viewer_page import Page

from envkit.errors import StorageError
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer import write_evaluation


def test_report_of_an_evaluation_holds_its_runs_and_variants(tmp_path: Path) -> None:
    folder = write_evaluation_folder(tmp_path / "pictures")
    shown = run_envkit("report", folder)
    assert shown.code == 0, shown.err
    page = Page(folder / "report.html")
    assert "Evaluation: pictures" in page.text
    assert [run["name"] for run in page.index["runs"]] == ["world-none", "world-blank-image"]
    (change,) = page.index["evaluation"]["variants"]
    assert (change["run"], change["difference"]["worse"]) == ("world-blank-image", 2)
    assert page.episode(3, run=1)["id"] == page.episode(3)["id"]
    assert str(tmp_path) not in (folder / "report.html").read_text()


def test_report_of_an_evaluation_leaves_out_runs_that_are_not_there_or_elsewhere(
    tmp_path: Path,
) -> None:
    folder = write_evaluation_folder(tmp_path / "pictures")
    document = json.loads((folder / "eval.json").read_text())
    document["runs"] |= {"not-begun": None, "../pictures/world-none": None}
    (folder / "eval.json").write_text(json.dumps(document))
    page = Page(write_evaluation(folder, tmp_path / "report.html"))
    assert [run["name"] for run in page.index["runs"]] == ["world-none", "world-blank-image"]


def test_evaluation_without_a_run_is_not_drawn(tmp_path: Path) -> None:
    folder = write_evaluation_folder(tmp_path / "pictures")
    for run in folder.glob("world-*"):
        (run / FILE_NAME).unlink()
    with pytest.raises(StorageError, match="has no run yet"):
        write_evaluation(folder, tmp_path / "report.html")
    (folder / "eval.json").write_text("{}")
    with pytest.raises(StorageError, match="does not describe an evaluation"):
        write_evaluation(folder, tmp_path / "report.html")
