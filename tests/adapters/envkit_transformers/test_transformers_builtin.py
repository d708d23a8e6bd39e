"""The built-in model that sees: shipped intact, exact in its template, and using its images.

It is the only test of the whole path with a model that can read: a placeholder out of place, a
wrong resize, a mixed-up cache or a lost turn all show as a lower reward.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import envkit
from envkit.cli.trained_on import trained_on
from envkit.errors import StorageError, UnknownNameError
from envkit.messages import message
from envkit.rollout import Engine, Limits, RolloutConfig, collect
from envkit.tokens import load_codec
from envkit.tokens.audit import RoleStatus
from envkit.wrappers import BlankImage, SwapImage
from envkit_transformers import BuiltinModel, builtin_model_dir, create_engine
from envkit_transformers.loading import load_processor

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
        seed=20, sampling={"temperature": 0.0, "max_new_tokens": 24}, limits=Limits(max_turns=4)
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
    ],
    ids=["codes", "move_window"],
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
    assert set(trained_on(str(SEEING))) == {"canary-v0", "computer-use-v0"}
    assert set(trained_on(str(SEEING))) <= set(envkit.registry())


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
        assert sum(path.stat().st_size for path in folder.iterdir()) < 6e6
