"""The notebooks: stripped in the repository, and each runs to its end in another folder."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

nbformat: Any = import_module("nbformat")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TRAINING = "06_train_a_langgraph_agent.ipynb"
"""Needs packages that only `make contract-trl` has; run there."""
LONGEST_S = 300
"""Twice what a notebook may take, as the machine may be shared."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_notebooks_are_numbered_and_listed() -> None:
    listed = re.findall(r"\]\((\d\d_[a-z_]+\.ipynb)\)", (ROOT / "notebooks/README.md").read_text())

    assert listed == [path.name for path in NOTEBOOKS]
    assert [path.name[:3] for path in NOTEBOOKS] == [f"{n:02d}_" for n in range(1, 7)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_valid_and_stripped(path: Path) -> None:
    document = read(path)

    nbformat.validate(document)
    code = [cell for cell in document.cells if cell.cell_type == "code"]
    assert code
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert "widgets" not in document.metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_opens_with_its_question_and_the_time_it_takes(path: Path) -> None:
    first = read(path).cells[0]

    assert first.cell_type == "markdown"
    title, _, rest = first.source.partition("\n")
    assert re.fullmatch(r"# .+\?", title)
    assert re.search(
        r"\*\*(\w+ seconds|Half a minute|One minute|Two minutes) on a CPU\.?\*\*", rest
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_says_what_a_cell_does_in_short(path: Path) -> None:
    for cell in read(path).cells:
        lines = cell.source.splitlines()
        assert len(lines) <= 48, lines[0]
        assert not re.search(r"/(home|work|root|tmp)/", cell.source)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_links_to_notebooks_that_exist(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")

    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_registers_no_id_that_another_page_installs(path: Path) -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *NOTEBOOKS]
    installed = {
        f"{name}-v0"
        for page in pages
        for name in re.findall(r"envkit new ([\w-]+)", page.read_text())
    }
    code = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")

    assert "count-dots-v0" in installed
    assert installed & set(re.findall(r'register\(\s*(?:id=)?"([^"]+)"', code)) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.name != TRAINING], ids=lambda path: path.stem
)
@pytest.mark.filterwarnings("default")  # of the kernel's client; a cell's warnings are checked
def test_notebook_runs_in_another_folder(path: Path, tmp_path: Path) -> None:
    nbclient: Any = import_module("nbclient")
    document = read(path)
    resources = {"metadata": {"path": str(tmp_path)}}

    nbclient.NotebookClient(
        document, timeout=LONGEST_S, kernel_name="python3", resources=resources
    ).execute()

    outputs = [output for cell in document.cells for output in cell.get("outputs", [])]
    assert outputs
    said = "".join(output.get("text", "") for output in outputs if output.get("name") == "stderr")
    assert "Warning" not in said
    assert "Traceback" not in said
    check = FINDINGS[path.name[:2]]
    told = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    assert all(re.search(line, told) for line in check), told


FINDINGS = {
    "01": [r"46XJ|0\.333", r"transformers stops on ids", r"\[assistant\]"],
    "02": [r"sound: gymnasium", r"breaks the contract in \d+ way", r"reward 1"],
    "03": [
        r"[1-9]\d* of 8 replies have other ids",
        r"delta is exact: +True\ncut by length is exact: False",
        r"rewrites history: True",
        r"wire ids: ValueError",
        r"forged: +the ledger was changed",
    ],
    "04": [
        r"the same reward in every episode: True",
        r"rewards: None",
        r"trained tokens in them: 0",
        r"branch: 1\.0",
    ],
    "05": [r"the same ids: True", r"refused: the environment shows images", r"\{4: 0\.33"],
}
"""What each notebook is there to show, as patterns of what it prints."""
