"""The notebook that trains a LangGraph agent through the gateway runs to its end and learns."""

import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest
from fakes.installed import install_metadata

NOTEBOOK = Path(__file__).resolve().parents[3] / "notebooks" / "06_train_a_langgraph_agent.ipynb"
LONGEST_S = 600
"""Five times what it takes, as the machine may be shared."""


def test_notebook_trains_a_langgraph_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join([str(install_metadata(tmp_path)), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    document = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}

    nbclient.NotebookClient(
        document, timeout=LONGEST_S, kernel_name="python3", resources=resources
    ).execute()

    outputs = [output for cell in document.cells for output in cell.get("outputs", [])]
    told = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    for line in (
        r"requests: 2  sequences: 1",
        r"the same tokens as envkit's own loop: True",
        r"their sequences: 64",
        r"to trainer: \de-0[56789]",
    ):
        assert re.search(line, told), told
    before, after, plain = map(
        float, re.findall(r"\d\.\d\d", told.partition("held-out reward: ")[2])
    )
    assert after > before + 0.1
    assert plain > before + 0.1
