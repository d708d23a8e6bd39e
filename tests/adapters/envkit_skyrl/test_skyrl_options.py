"""Settings of the SkyRL adapter, without SkyRL."""

import subprocess
import sys
from typing import Any

import pytest
from fakes.families import BY_NAME, build

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.tokens import ChatCodec
from envkit_skyrl import SkyRLOptions


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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith(MissingDependencyError.__name__)
    assert "the package 'skyrl' is not installed" in done.stdout


def test_images_of_another_family_than_qwen_are_refused_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from envkit_skyrl.setup import find_images

    assert find_images(ChatCodec(build(BY_NAME["Qwen2-VL"]))) is not None
    for name in ("PaddleOCR-VL", "LLaVA-NeXT"):
        assert find_images(ChatCodec(build(BY_NAME[name]))) is None
        assert BY_NAME[name].processor in caplog.text
