"""What a new user runs, as written: first script, examples, and agents' page and notebook."""

import importlib.util
import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from fakes.grpo_trainer import prepare
from fakes.installed import ROOT, install_metadata
from fakes.models import tiny_model_dir
from fakes.needs import BROWSER_USE, DEBIAN_CHROMIUM
from fakes.pages import run_page
from fakes.processes import run_python
from fakes.trl_run import grpo_arguments
from transformers import AutoTokenizer

from envkit.errors import ConfigurationError
from envkit_transformers import builtin_model_dir
from envkit_trl import EnvGRPOTrainer, env_reward, load_processor, task_dataset

DIGITS = {"turns": 2, "length": 1, "alphabet": "0123456789"}


@pytest.fixture(autouse=True)
def environments_known() -> None:
    """Register canary-v0, as installing envkit does."""
    prepare()


def script() -> str:
    """Return the page's script."""
    page = (ROOT / "docs/trainers/trl.md").read_text("utf-8")
    found = re.search(r"<!-- test: first -->\n```python\n(.*?)```", page, re.DOTALL)
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


@pytest.mark.parametrize(("options", "prefix"), [([], ""), (["--half"], "half-")])
def test_trl_example_trains_and_evaluates_with_and_without_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], prefix: str
) -> None:
    script = ROOT / "examples" / "learn_canary_trl.py"
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), "--quick", *options, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0
    figures = json.loads((tmp_path / f"{prefix}canary-seed0.json").read_text())
    assert figures["changed"] == figures["tensors"] > 0
    assert len(figures["rewards"]) == len(figures["mismatch"]) == 2
    assert all(largest < 1e-4 for largest, _ in figures["mismatch"])
    assert set(figures["end"]) == {"images", "blank", "swapped"}
    assert "<svg" in (tmp_path / "canary.svg").read_text()


def test_trl_example_imitates_oracles_and_trains_on_three_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, paths = ROOT / "examples" / "learn_visual_trl.py", [str(install_metadata(tmp_path))]
    paths += [str(ROOT / one) for one in (".", "envs", "adapters")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    run_python(script, "--quick", "--out", tmp_path / "out", env={**os.environ})

    for world in ("lights", "pegs", "clock"):
        figures = json.loads((tmp_path / "out" / f"visual-{world}.json").read_text())
        assert figures["warmup"]
        assert len(figures["rewards"]) == 2
        assert all(largest < 1e-4 for largest, _ in figures["mismatch"])
        assert set(figures["end"]) == {"images", "blank", "swapped"}
    assert "<svg" in (tmp_path / "out" / "visual.svg").read_text()


def test_page_on_agents_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, folder = tmp_path / "bin" / "envkit", tmp_path / "folder"
    command.parent.mkdir()
    folder.mkdir()
    paths = [
        str(install_metadata(tmp_path)),
        *(str(ROOT / one) for one in (".", "envs", "adapters")),
    ]
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[1:1] = {paths!r}\n"
        "from envkit.cli import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(command.parent), os.environ["PATH"]]))
    monkeypatch.setenv("HOME", str(folder))

    assert run_page(ROOT / "docs" / "gateway.md", folder) >= 6


NOTEBOOK = ROOT / "notebooks" / "06_train_a_langgraph_agent.ipynb"

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


PYTHON = os.environ.get("ENVKIT_BROWSER_USE_PYTHON")


@BROWSER_USE.mark
@DEBIAN_CHROMIUM.mark
def test_trl_trains_behind_a_browser_use_agent(tmp_path: Path) -> None:
    path = [str(install_metadata(tmp_path)), os.environ.get("PYTHONPATH", "")]
    script = ROOT / "examples" / "train_browser_use.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    printed = run_python(script, "--steps", "2", "--agent-python", PYTHON, env=env)
    assert re.search(r"sampled 8, trained 8, mismatch \de-0[56789]", printed), printed
