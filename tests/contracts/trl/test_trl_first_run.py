"""A new user's first run: the install and the script of docs/trainers/trl.md, and nothing else."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from fakes.grpo_trainer import prepare
from fakes.models import tiny_model_dir
from fakes.trl_run import grpo_arguments
from transformers import AutoTokenizer

from envkit.errors import ConfigurationError
from envkit_transformers import builtin_model_dir
from envkit_trl import EnvGRPOTrainer, env_reward, load_processor, task_dataset

PAGE = (Path(__file__).parents[3] / "docs/trainers/trl.md").read_text("utf-8")
DIGITS = {"turns": 2, "length": 1, "alphabet": "0123456789"}


@pytest.fixture(autouse=True)
def environments_known() -> None:
    """Register canary-v0, as installing envkit does."""
    prepare()


def script() -> str:
    """Return the page's script."""
    found = re.search(r"<!-- test: first -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def made(folder: Path, model: Any, **options: Any) -> Any:
    """Return a trainer that plays short episodes of digits."""
    return EnvGRPOTrainer(
        model,
        args=grpo_arguments(folder, max_steps=1),
        config={"sampling": {"max_new_tokens": 4}},
        train_dataset=task_dataset("canary-v0", count=8, env_kwargs=DIGITS),
        **options,
    )


def test_trl_page_script_trains_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.util.find_spec("torchvision") is None  # the documented install brings none
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    exec(script(), space)  # the page's own code
    trainer = space["trainer"]
    assert trainer.state.global_step == 5
    assert all(one.images() for one in trainer.trajectories)
    logged = [one for one in trainer.state.log_history if "reward" in one]
    assert len(logged) == 5
    assert all(one["envkit/logprob_difference_max"] < 1e-3 for one in logged)
    # A checkpoint that transformers can read again, settings of videos included.
    (saved,) = (tmp_path / "runs/first").glob("checkpoint-*")
    again = load_processor(saved)
    assert type(again).__name__ == "Qwen3VLProcessor"
    assert dict(again.video_processor)["video_processor_type"] == "Qwen3VLVideoProcessor"


def _half(env_reward: list[float | None], **_: Any) -> list[float | None]:
    return [None if one is None else one / 2 for one in env_reward]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ["env_reward"]),
        (env_reward, ["env_reward"]),
        (_half, ["_half"]),
        ([_half], ["_half"]),
        ((env_reward, _half), ["env_reward", "_half"]),
    ],
    ids=["none", "own", "function", "list", "tuple"],
)
def test_trl_vision_trainer_takes_reward_functions_as_trl_does(
    tmp_path: Path, given: Any, names: list[str]
) -> None:
    trainer = made(tmp_path, str(tiny_model_dir("qwen2_5_vl")), reward_funcs=given)
    trainer.close()
    assert [one.__name__ for one in trainer.reward_funcs] == names


def test_trl_turn_credit_accepts_the_environments_reward_by_name(tmp_path: Path) -> None:
    folder = str(tiny_model_dir("qwen2_5_vl"))
    made(tmp_path, folder, reward_funcs=env_reward, turn_discount=0.0).close()
    with pytest.raises(ConfigurationError, match="reward_funcs"):
        made(tmp_path, folder, reward_funcs=_half, turn_discount=0.0)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_trl_load_processor_reads_images_without_torchvision(kind: Any) -> None:
    folder = tiny_model_dir(kind)
    from PIL import Image as PilImage

    processor = load_processor(str(folder))
    assert processor.tokenizer.padding_side == processor.tokenizer.truncation_side == "left"
    text = f"{processor.image_token} what is it?"
    batch = processor(text=[text], images=[PilImage.new("RGB", (84, 56))], return_tensors="pt")
    image_id = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    placeholders = int((batch["input_ids"] == image_id).sum())
    assert placeholders == int(batch["image_grid_thw"].prod()) // 4
    assert processor.chat_template == AutoTokenizer.from_pretrained(folder).chat_template


def test_trl_load_processor_gives_a_text_model_its_tokenizer(tmp_path: Path) -> None:
    from fakes.trl_run import saved_model

    folder, _ = saved_model(tmp_path / "model")
    tokenizer = load_processor(folder)
    assert not hasattr(tokenizer, "image_processor")
    assert tokenizer.padding_side == "left"


def test_trl_trainer_finds_the_processor_of_a_loaded_model(tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    folder = str(builtin_model_dir("builtin-half"))
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype="float32")
    trainer = made(tmp_path, model)
    trainer.close()
    assert type(trainer.processing_class).__name__ == "Qwen3VLProcessor"
