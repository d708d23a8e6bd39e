"""Settings and datasets of the SkyRL adapter, without SkyRL."""

import json
import subprocess
import sys
from typing import Any

import pytest
from fakes.skyrl_envs import WORLD, register_skyrl_envs

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.rollout import EpisodeRequest
from envkit_skyrl import SkyRLOptions, build_dataset


@pytest.fixture(autouse=True)
def known() -> None:
    register_skyrl_envs()
    WORLD.clear()


def test_rows_have_prompt_env_class_and_the_request() -> None:
    rows = build_dataset("obey-v0", size=2, start=3, env_kwargs={"rounds": 2}, seed=1)
    assert [sorted(row) for row in rows] == [["env_class", "envkit", "prompt"]] * 2
    assert rows[0]["prompt"] == [
        {"role": "system", "content": "Obey."},
        {"role": "user", "content": "Do task 3."},
    ]
    request = EpisodeRequest.from_column(rows[0]["envkit"])
    assert request.task == {"name": "task 3"}
    assert request.env_kwargs == {"rounds": 2}
    seeds = [json.loads(row["envkit"])["seed"] for row in rows]
    assert len(set(seeds)) == 2
    assert WORLD["built"] == WORLD["closed"] == 1


def test_every_task_is_taken_where_their_number_is_known() -> None:
    assert len(build_dataset("obey-v0")) == 6
    assert len(build_dataset("obey-v0", tasks=[{"name": "x"}])) == 1


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("obey-v0", {"size": 7}, "there are 6 tasks"),
        ("obey-v0", {"start": 6}, "there are 6 tasks"),
        ("obey-v0", {"size": 0}, "size at least 1"),
        ("canary-v0", {}, "endless tasks: say size="),
        ("obay-v0", {"size": 1}, "Did you mean 'obey-v0'"),
    ],
)
def test_rows_that_cannot_be_made_are_refused(
    env_id: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_dataset(env_id, **options)


def test_pictures_are_left_out_of_the_prompt_column() -> None:
    (row,) = build_dataset("canary-v0", size=1)
    assert all(isinstance(message["content"], str) for message in row["prompt"])


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"max_resumes": -1}, "max_resumes must be 0 or more"),
        ({"merge": "yes"}, "merge must be true or false"),
        ({"reward_placement": "first"}, "reward_placement must be one of"),
        ({"generator": "mine"}, r"\['envkit', 'skyrl'\]"),
        ({"imports": 3}, "list of module names"),
        ({"engine": {"timeout_s": 0}}, "engine.timeout_s must be positive"),
        ({"engine": 5}, "engine must be a mapping"),
        ({"lmits": {}}, "did you mean 'limits'"),
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


def test_without_skyrl_the_install_line_is_printed_and_torch_is_not_imported() -> None:
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
    assert "pip install 'envkit-rl[skyrl]'" in done.stdout
