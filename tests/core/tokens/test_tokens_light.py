"""What transformers would give, without it: templates, ids, image tokens and tensors."""

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.matrix import share
from fakes.processes import run_python
from fakes.templates import SPECS, load_tokenizer
from PIL import Image as PilImage

import envkit
from envkit import Env
from envkit.errors import ConfigurationError, ImageError, MissingDependencyError
from envkit.messages import message
from envkit.tokens import ChatCodec, load_codec
from envkit.tokens.light import LightTokenizer, Qwen2VLImages, load_light
from envkit.tokens.loading import read_json
from envkit.tokens.template import ChatTemplate, template_text

SEEING = Path(str(files("envkit_transformers"))) / "models" / "seeing"
TEXTS = (
    "",
    " ",
    "K7MX",
    "plain words, 12 + 3 = 15.\n",
    "  \n\n\tedges \u00e9 \u4e16\u754c \U0001f680 \\n \r\n ",
    "<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|> x",
    "\u0000\u200b\ufffd zero and width",
    "a" * 5000,
)
SIZES = (
    (1, 1), (1, 200), (28, 28), (31, 33), (48, 16), (64, 64), (100, 37), (224, 224), (320, 320),
    (333, 500), (640, 480), (672, 448), (1280, 720), (1920, 1200), (47, 1001), (5, 900), (900, 15),
)  # fmt: skip


def light(folder: Path = SEEING) -> Any:
    return load_light(folder, lambda file: read_json(str(folder), file))


@pytest.fixture(scope="module")
def full() -> Any:
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    return loader.from_pretrained(str(SEEING))


@pytest.mark.parametrize("name", share(sorted(SPECS), of=3))
def test_compiled_template_renders_as_transformers_does(name: str) -> None:
    """A template whose renders differ falls back to the tokenizer and has no syntax tree."""
    tokenizer = load_tokenizer(name)
    text = template_text(tokenizer, SPECS[name].kwargs.get("chat_template"), with_tools=False)
    template = ChatTemplate(tokenizer, text, kwargs=dict(SPECS[name].kwargs))
    assert template.syntax_tree is not None


@pytest.mark.parametrize("text", TEXTS)
def test_light_tokenizer_encodes_and_decodes_as_transformers_does(text: str, full: Any) -> None:
    tokenizer: LightTokenizer = light().tokenizer
    ids = full.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert tokenizer.decode(ids) == full.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "name",
    [
        "qwen2.5",
        "smollm2",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("gpt-oss", "llama3.2", "mistral-nemo", "phi3")
        ),
    ],
)
def test_light_tokenizer_reads_real_models_as_transformers_does(name: str) -> None:
    full = load_tokenizer(name)
    tokenizer: LightTokenizer = light(Path(full.name_or_path))

    for text in TEXTS:
        ids = full.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == full.decode(ids, skip_special_tokens=False)
    assert tokenizer.encode("a", add_special_tokens=True) == full.encode("a")
    assert tokenizer.get_added_vocab() == full.get_added_vocab()
    assert len(tokenizer) == len(full)
    assert tokenizer.eos_token_id == full.eos_token_id


def test_light_tokenizer_has_the_facts_that_a_codec_reads(full: Any) -> None:
    tokenizer: LightTokenizer = light().tokenizer
    assert len(tokenizer) == len(full)
    assert tokenizer.eos_token_id == full.eos_token_id
    assert tokenizer.get_added_vocab() == full.get_added_vocab()
    assert set(tokenizer.all_special_tokens) == set(full.all_special_tokens)
    assert tokenizer.chat_template == full.chat_template


@pytest.mark.parametrize("size", SIZES)
def test_light_images_are_the_bits_of_transformers(size: tuple[int, int]) -> None:
    from transformers import AutoImageProcessor

    loader: Any = AutoImageProcessor
    theirs = loader.from_pretrained(str(SEEING), backend="pil")
    noise = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    picture = PilImage.fromarray(noise)
    expected = theirs(images=[picture, picture], return_tensors="np")
    found = light().image_processor(images=[picture, picture], return_tensors="np")

    assert set(found) == set(expected)
    for key, values in found.items():
        assert values.dtype == expected[key].dtype
        assert np.array_equal(values, expected[key])


def test_light_images_refuse_a_strip() -> None:
    processor: Qwen2VLImages = light().image_processor
    with pytest.raises(ImageError, match="at most 200, got 1x201"):
        processor(images=[PilImage.new("RGB", (1, 201))])


@pytest.mark.parametrize("env_id", ["canary-v0", "computer-use-v0", "geo3k-v0"])
def test_light_codec_gives_the_ledger_of_the_full_one(env_id: str) -> None:
    env: Env = envkit.make(env_id).unwrapped  # type: ignore[assignment]
    observation, _ = env.reset(seed=5)
    messages = [message("system", env.system_prompt or ""), env.format_observation(observation)]
    tools = env.tools
    full = load_codec(SEEING, tools=tools)
    ours = ChatCodec(light(), tools=tools, stop_ids=full.stop_ids)
    expected, found = full.encode_prompt(messages), ours.encode_prompt(messages)

    assert found.wire_ids == expected.wire_ids
    assert found.train_ids == expected.train_ids
    assert ours.encode_reply("The answer") == full.encode_reply("The answer")
    assert ours.stop_ids == full.stop_ids
    for mine, other in zip(found.features, expected.features, strict=True):
        for key in ("pixel_values", "image_grid_thw"):
            assert np.array_equal(mine.tensors[key], other.tensors[key])


def test_load_light_refuses_a_tokenizer_with_its_own_code(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[hf\]"):
        light(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"do_resize": False},
        {"do_rescale": False},
        {"do_normalize": False},
        {"size": {"height": 224, "width": 224}},
        {"image_mean": None},
        {"image_processor_type": None},
        {"image_processor_type": "CLIPImageProcessor"},
    ],
    ids=str,
)
def test_load_light_refuses_images_that_it_would_prepare_otherwise(
    change: dict[str, Any], tmp_path: Path
) -> None:
    folder = shutil.copytree(SEEING, tmp_path / "model")
    file = folder / "preprocessor_config.json"
    settings = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[hf\]"):
        light(folder)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"]
)
def test_load_light_names_a_damaged_file(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(SEEING, tmp_path / "model")
    (folder / name).write_text('{"cut": ')
    with pytest.raises(ConfigurationError, match=name):
        light(folder)


def test_load_light_reads_a_tokenizer_again_only_if_its_file_changed(tmp_path: Path) -> None:
    folder = shutil.copytree(SEEING, tmp_path / "model")
    first = light(folder).tokenizer
    assert light(folder).tokenizer is first
    file = folder / "tokenizer.json"
    contents = json.loads(file.read_text())
    contents["added_tokens"][-1]["content"] = "<|renamed|>"
    file.write_text(json.dumps(contents))
    assert "<|renamed|>" in light(folder).tokenizer.get_added_vocab()


_WITHOUT = """
import importlib.util, sys
HIDDEN = {"tokenizers", "torch", "transformers"}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in HIDDEN else find(name, *rest)
from envkit.cli import main
main()
"""


_INSTALLED = """
import sys
from envkit.cli import main
try:
    main()
finally:
    print("imported:", {"tokenizers", "torch", "transformers"} & set(sys.modules))
"""


@pytest.mark.parametrize(
    ("env_id", "code"),
    [
        ("canary-v0", _WITHOUT),
        pytest.param("computer-use-v0", _INSTALLED, marks=pytest.mark.slow),
    ],
)
def test_scripted_rollout_needs_neither_torch_nor_transformers(
    env_id: str, code: str, tmp_path: Path
) -> None:
    command = ["rollout", env_id, "--policy", "oracle", "-n", "2", "--out", str(tmp_path / "run")]
    printed = run_python("-c", code, *command)
    assert "2 trajectories" in printed
    assert "all sound" in printed
    if code is _INSTALLED:
        assert "imported: set()" in printed


@pytest.mark.parametrize("keeps_images", [True, False])
def test_light_reading_refuses_a_processor_that_it_does_not_know(
    keeps_images: bool, tmp_path: Path
) -> None:
    """Read as text, such a model would have no images, or another family's image tokens."""
    folder = tmp_path / "model"
    shutil.copytree(SEEING, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    images = json.loads((folder / "preprocessor_config.json").read_text())
    if keeps_images:
        images["processor_class"] = "Glm4vProcessor"
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
    else:
        (folder / "preprocessor_config.json").unlink()
        whole = {"processor_class": images.pop("processor_class"), "image_processor": images}
        (folder / "processor_config.json").write_text(json.dumps(whole))
    with pytest.raises(MissingDependencyError, match="transformers"):
        light(folder)


def test_lazy_codec_has_images_however_the_processor_was_saved(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(SEEING, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    images = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    whole = {"processor_class": images.pop("processor_class"), "image_processor": images}
    (folder / "processor_config.json").write_text(json.dumps(whole))
    image = envkit.Image.from_array(np.zeros((64, 64, 3), np.uint8))
    prompt = [message("user", "Look.", [image])]
    expected = load_codec(SEEING, lazy_features=True).encode_prompt(prompt)
    assert load_codec(folder, lazy_features=True).encode_prompt(prompt).train_ids == (
        expected.train_ids
    )
