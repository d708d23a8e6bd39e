"""A model folder never runs code, and loading one never asks whether it may."""

import json
from pathlib import Path

import pytest
from fakes.models import tiny_model_dir

from envkit.errors import ConfigurationError
from envkit.tokens import load_codec


def test_model_with_its_own_code_is_refused_without_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    for file in Path(tiny_model_dir("qwen2_5_vl")).iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings["tokenizer_class"] = "PlantedTokenizer"
    settings["auto_map"] = {"AutoTokenizer": ["planted.PlantedTokenizer", None]}
    file.write_text(json.dumps(settings))
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"model_type": "planted", "auto_map": {"AutoConfig": "planted.PlantedConfig"}}
    (tmp_path / "config.json").write_text(json.dumps({**config, **own}))
    witness = tmp_path / "imported"
    (tmp_path / "planted.py").write_text(f"open({str(witness)!r}, 'w').close()\n")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "y")
    from envkit_transformers.loading import load_processor

    for load in (load_codec, load_processor):
        with pytest.raises(ConfigurationError):
            load(str(tmp_path))
    assert asked == []
    assert not witness.exists()
