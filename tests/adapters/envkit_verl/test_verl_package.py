"""The verl adapter where verl is not installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import envkit_verl
from envkit.errors import MissingDependencyError


def test_verl_package_imports_without_verl_and_torch() -> None:
    code = "import sys, envkit_verl; print(sorted({'verl', 'torch', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed")
def test_verl_package_says_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[verl\]'"):
        _ = envkit_verl.EnvAgentLoop
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = envkit_verl.Nothing  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["org/model", "org/other", "/no/such/folder", "", None])
def test_model_of_a_tokenizer_is_looked_for_on_this_machine_only(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    shared = pytest.importorskip("envkit_verl.shared")

    def refuse(*_given: object, **_options: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", refuse)
    repository = tmp_path / "models--org--model"
    snapshot = repository / "snapshots" / "3f2a"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("3f2a")
    (snapshot / "config.json").write_text("{}")
    expected = str(snapshot) if name == "org/model" else ""
    tokenizer = SimpleNamespace(**({} if name is None else {"name_or_path": name}))
    assert shared._model_folder(tokenizer) == expected
    assert shared._model_folder(SimpleNamespace(name_or_path=str(tmp_path))) == str(tmp_path)
