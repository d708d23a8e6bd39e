"""A rollout says what its model was trained on, and warns if the environment is another."""

import json
import shutil
from pathlib import Path

import pytest
from fakes.command import run_envkit
from fakes.models import tiny_model_dir

from envkit.cli.trained_on import describe_training, trained_on


def folder(tmp_path: Path, content: str) -> str:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    return str(tmp_path)


@pytest.mark.parametrize(
    "content", ["[]", "{", '"x"', "{}", '{"trained_on": ["canary-v0"]}', '{"trained_on": null}']
)
def test_config_without_a_mapping_says_nothing(tmp_path: Path, content: str) -> None:
    assert trained_on(folder(tmp_path, content)) == {}
    assert describe_training(str(tmp_path), "canary-v0") is None


def test_hub_name_says_nothing() -> None:
    assert trained_on("nobody/nothing") == {}


def test_training_is_described_and_another_environment_is_warned_of(tmp_path: Path) -> None:
    model = folder(tmp_path, '{"trained_on": {"a-v0": "level 1", "b-v0": "all"}}')
    assert describe_training(model, "a-v0") == "the model was trained on a-v0: level 1"
    warning = describe_training(model, "c-v0")
    assert warning is not None
    assert "warning: the model was trained on a-v0, b-v0, not on c-v0" in warning


@pytest.mark.parametrize("policy", [None, "oracle"])
@pytest.mark.slow
def test_rollout_warns_of_a_model_but_not_of_a_policy(tmp_path: Path, policy: str | None) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_model_dir("qwen2_5_vl"), copy)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["trained_on"] = {"other-v0": "everything"}
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    chosen = ["--policy", policy] if policy else ["--max-new-tokens", 2]
    shown = run_envkit(
        "rollout", "canary-v0", "--model", copy, "-n", 1, "--out", tmp_path / "run", *chosen
    )
    assert shown.code == 0
    assert ("trained on other-v0, not on canary-v0" in shown.err) == (policy is None)
