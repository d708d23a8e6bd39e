"""Settings of the SkyRL adapter, and the checks before SkyRL's validator, without SkyRL."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fakes.families import BY_NAME, build
from fakes.processes import run_python

from envkit.errors import ConfigurationError, ContractError, MissingDependencyError
from envkit.tokens import ChatCodec
from envkit_skyrl import SkyRLOptions, validate_output
from envkit_skyrl.validation import ImageSettings


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"max_resumes": -1}, "max_resumes must be at least 0"),
        ({"merge": "yes"}, "merge must be"),
        ({"reward_placement": "first"}, "reward_placement must be"),
        ({"imports": 3}, "imports must be"),
        ({"engine": {"timeout_s": 0}}, "timeout_s must be positive"),
        ({"turn_discount": 2.0}, "turn_discount must be None or from 0"),
        ({"turn_discount": "all"}, "turn_discount must be"),
        ({"task_fields": ["a"]}, "task_fields must be"),
        ({"engine": 5}, "engine must be a mapping"),
        ({"lmits": {}}, "Did you mean 'limits'"),
        ({"tail": {"then": "drop"}}, "max_staleness_steps"),
    ],
)
def test_settings_that_make_no_sense_are_refused(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SkyRLOptions.from_mapping(mapping)


def test_settings_are_read() -> None:
    options = SkyRLOptions.from_mapping(
        {"env_id": "obey-v0", "merge": True, "imports": "a.b", "engine": {"timeout_s": None}}
    )
    assert (options.merge, options.imports, options.timeout_s) == (True, ("a.b",), None)
    assert options.rollout.env_id == "obey-v0"
    assert SkyRLOptions.from_mapping(None) == SkyRLOptions()


@pytest.mark.slow
def test_without_skyrl_the_missing_package_is_named_and_torch_is_not_imported() -> None:
    code = (
        "import sys, envkit_skyrl\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['skyrl'] = None\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "try:\n"
        "    envkit_skyrl.EnvGenerator\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    printed = run_python("-c", code)
    assert printed.startswith(MissingDependencyError.__name__)
    assert "the package 'skyrl' is not installed" in printed


def test_images_of_another_family_than_qwen_are_refused_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from envkit_skyrl.setup import find_images

    assert find_images(ChatCodec(build(BY_NAME["Qwen2-VL"]))) is not None
    for name in ("PaddleOCR-VL", "LLaVA-NeXT"):
        assert find_images(ChatCodec(build(BY_NAME[name]))) is None
        assert BY_NAME[name].processor in caplog.text


IMAGES = ImageSettings(token_id=9, patches_per_token=4, patch_size=8)

Change = Callable[[dict[str, Any]], object]


@dataclass
class Identity:
    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


IDS = [Identity("a", 0), Identity("a", 1)]


def output() -> dict[str, Any]:
    """Two turns of one trajectory and one of another, an image in the first two rows."""
    return {
        "prompt_token_ids": [[1, 9], [1, 9, 2, 3], [1]],
        "response_ids": [[2], [4, 5], [6]],
        "rewards": [[0.0], [0.0, 1.0], [0.5]],
        "loss_masks": [[1], [1, 1], [1]],
        "stop_reasons": ["stop", "stop", "length"],
        "rollout_logprobs": [[-0.1], [-0.1, -0.2], [-0.3]],
        "trajectory_ids": [IDS[0], IDS[0], IDS[1]],
        "is_last_step": [False, True, True],
        "pixel_values": [torch.ones(4, 8), torch.ones(4, 8), torch.zeros(0, 8)],
        "image_grid_thw": [
            torch.tensor([[1, 2, 2]]),
            torch.tensor([[1, 2, 2]]),
            torch.zeros(0, 3, dtype=torch.long),
        ],
        "rollout_metrics": None,
    }


def validate(value: dict[str, Any], **options: Any) -> None:
    settings: dict[str, Any] = {"images": IMAGES, "max_tokens": 20, **options}
    validate_output(value, IDS, **settings)


def put(key: str, row: int, value: Any) -> Change:
    return lambda found: found[key].__setitem__(row, value)


def drop(key: str) -> Change:
    return lambda found: found.pop(key)


def replace(key: str, value: Any) -> Change:
    return lambda found: found.update({key: value})


def test_a_sound_output_passes() -> None:
    validate(output())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("response_ids", 0, []), "row 0: prompt and response must not be empty"),
        (put("prompt_token_ids", 2, []), "row 2: prompt and response must not be empty"),
        (put("rollout_logprobs", 2, [float("nan")]), "row 2: rollout_logprobs must be finite"),
        (put("rollout_logprobs", 2, [-float("inf")]), "row 2: rollout_logprobs must be finite"),
        (put("rewards", 2, [float("inf")]), "row 2: rewards must be finite"),
        (put("prompt_token_ids", 2, [1] * 20), "row 2: at most 20 tokens, got 21"),
        (drop("pixel_values"), "needs pixel_values and image_grid_thw"),
        (put("pixel_values", 2, None), "row 2: .* needs pixel_values and image_grid_thw, empty"),
        (
            put("pixel_values", 0, torch.ones(8, 8)),
            "row 0: pixel_values must have one row per patch, got 8",
        ),
        (put("prompt_token_ids", 0, [1, 9, 9]), "row 0: .* placeholders for 8"),
        (put("trajectory_ids", 2, IDS[0]), r"missing: \['a_1'\]"),
        (
            replace("trajectory_ids", [IDS[0], IDS[1], IDS[0]]),
            "with adjacent rows; missing",
        ),
    ],
)
def test_a_broken_rule_is_named(change: Change, message: str) -> None:
    broken = copy.deepcopy(output())
    change(broken)
    with pytest.raises(ContractError, match=message):
        validate(broken)


def test_scalar_rewards_and_no_logprobs_pass() -> None:
    found = output()
    found["rewards"], found["rollout_logprobs"] = [0.0, 1.0, 0.5], None
    validate(found)
