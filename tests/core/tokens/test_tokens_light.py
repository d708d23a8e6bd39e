"""What transformers would give, without it: templates, ids, image tokens and tensors."""

import json
import random
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.matrix import share
from fakes.processes import run_python
from fakes.templates import SPECS, load_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage
from tokenizers import Tokenizer

import envkit
from envkit import Env
from envkit.errors import ConfigurationError, ImageError, MissingDependencyError
from envkit.messages import message
from envkit.tokens import ChatCodec, load_codec
from envkit.tokens.light import LightTokenizer, Qwen2VLImages, load_light
from envkit.tokens.loading import read_json
from envkit.tokens.template import ChatTemplate, template_text
from envkit.tokens.vocabulary import read_vocabulary

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
    "name", share(["qwen2.5", "gpt-oss", "llama3.2", "smollm2", "mistral-nemo", "phi3"], of=3)
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


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import AutoImageProcessor

    loader: Any = AutoImageProcessor
    return loader.from_pretrained(str(SEEING), backend="pil")


@pytest.mark.parametrize("size", SIZES)
def test_light_images_are_the_bits_of_transformers(size: tuple[int, int], theirs: Any) -> None:
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
    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[transformers\]"):
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
    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[transformers\]"):
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


FILE = Path(str(files("envkit_transformers"))) / "models" / "seeing" / "tokenizer.json"
DATA: dict[str, Any] = json.loads(FILE.read_text())
OURS = read_vocabulary(FILE)
THEIRS: Any = Tokenizer.from_file(str(FILE))
PIECES = [
    *sorted({THEIRS.decode([number]) for number in range(256, len(DATA["model"]["vocab"]))}),
    *(token["content"] for token in DATA["added_tokens"]),
    *"AZ09 '\n\t_-.",
    "  ",
    "'s",
    "'re",
    "é",
    "½",
    "世",
    "\u0301",
    "\x00",
    "\u00a0",
]


def encoded(text: str) -> list[int]:
    return OURS.encode(text, add_special_tokens=False)


def expected(text: str) -> list[int]:
    return THEIRS.encode(text, add_special_tokens=False).ids


@given(st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=40))
def test_vocabulary_encodes_as_tokenizers_does(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert encoded(text) == expected(text)
    assert OURS.encode(text, add_special_tokens=True) == THEIRS.encode(text).ids


@given(st.lists(st.integers(0, len(OURS) + 3), max_size=40), st.booleans())
def test_vocabulary_decodes_as_tokenizers_does(ids: list[int], skips: bool) -> None:
    """Single bytes of a character become a replacement character, and unknown ids nothing."""
    assert OURS.decode(ids, skip_special_tokens=skips) == THEIRS.decode(
        ids, skip_special_tokens=skips
    )


@pytest.mark.slow
def test_vocabulary_encodes_every_character_as_tokenizers_does() -> None:
    """Planes 4 to 13 have no characters, so a few of their codes stand for all."""
    empty = range(0x40000, 0xE0000, 251)
    for code in (*range(0xD800), *range(0xE000, 0x40000), *empty, *range(0xE0000, 0x110000)):
        one = chr(code)
        text = f"a{one}b {one}  {one}{one}A"
        assert encoded(text) == expected(text), hex(code)


@pytest.mark.slow
def test_vocabulary_encodes_a_hundred_thousand_mixtures_as_tokenizers_does() -> None:
    rng = random.Random(7)
    for _ in range(100_000):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 40)))
        assert encoded(text) == expected(text), text


def test_vocabulary_has_the_facts_of_tokenizers() -> None:
    assert len(OURS) == THEIRS.get_vocab_size(with_added_tokens=True)
    for name in (*THEIRS.get_vocab(), "no such token"):
        assert OURS.id_of(name) == THEIRS.token_to_id(name)
    for number in (-1, *range(len(OURS) + 2)):
        assert OURS.name_of(number) == (None if number < 0 else THEIRS.id_to_token(number))
    assert OURS.added == {token["content"]: token["id"] for token in DATA["added_tokens"]}


@pytest.mark.parametrize("change", ["merge", "word", "added"])
def test_vocabulary_of_a_changed_file_comes_from_tokenizers(change: str, tmp_path: Path) -> None:
    """tiktoken could give other ids, so a changed file must not be taken for envkit's own."""
    data = json.loads(FILE.read_text())
    if change == "merge":
        data["model"]["merges"].reverse()
    elif change == "word":
        data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-c]"
    else:
        data["added_tokens"][-1]["lstrip"] = True
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(data))
    theirs: Any = Tokenizer.from_file(str(file))
    ours = read_vocabulary(file)
    for text in (" the task  ends", *(f"  {token['content']} a" for token in data["added_tokens"])):
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text).ids


_UNTOKENIZED = """
import sys
from pathlib import Path
sys.modules["tokenizers"] = None
from envkit.tokens.vocabulary import read_vocabulary
own, other = map(Path, sys.argv[1:])
print(read_vocabulary(own).encode("move K7", add_special_tokens=False))
try:
    read_vocabulary(other)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_vocabulary_needs_tokenizers_for_other_models_only(tmp_path: Path) -> None:
    file = tmp_path / "model" / "tokenizer.json"
    file.parent.mkdir()
    file.write_text(json.dumps({**DATA, "normalizer": {"type": "NFC"}}))
    own, other = run_python("-c", _UNTOKENIZED, FILE, file).splitlines()
    assert json.loads(own) == expected("move K7")
    assert other.startswith(MissingDependencyError.__name__)
    assert "envkit-rl[transformers]" in other


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 3}', '{"model": {"type": "BPE"}}'])
def test_vocabulary_of_a_damaged_file_is_one_clear_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        read_vocabulary(file)
