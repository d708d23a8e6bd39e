"""Loading codecs from folders, which never runs code and never asks whether it may."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from fakes.models import tiny_model_dir

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.tokens import load_codec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(tiny_model_dir("qwen2_5_vl"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    return tmp_path


@pytest.mark.slow
def test_load_codec_reads_stop_ids_and_image_processor(folder: Path) -> None:
    codec = load_codec(folder)
    assert codec.stop_ids == (2, 9)
    assert codec.audit().supports_images
    assert load_codec(str(folder), stop_ids=[7]).stop_ids[0] == 7


def test_load_codec_names_a_wrong_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a model folder"):
        load_codec(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no model folder"):
        load_codec(tmp_path / "missing")
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(ConfigurationError, match="no tokenizer can be loaded"):
        load_codec(tmp_path)


def test_load_codec_names_a_broken_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"generation_config\.json"):
        load_codec(folder)


def test_load_codec_says_how_to_install_transformers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        load_codec(folder)


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
