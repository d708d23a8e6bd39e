"""slime finds our functions by its own loader, and its own plugin contracts accept them."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]

FLAGS = {
    "custom_generate_function_path": ("generate", ["args", "sample", "sampling_params"]),
    "custom_rm_path": ("reward", ["args"]),
    "data_source_path": ("DataSource", ["args"]),
    "custom_reward_post_process_path": ("post_process_rewards", ["args", "samples"]),
    "dynamic_sampling_filter_path": ("dynamic_filter", ["args", "samples"]),
    "custom_rollout_log_function_path": (
        "log_rollout_data",
        ["rollout_id", "args", "samples", "rollout_extra_metrics", "rollout_time"],
    ),
    "custom_eval_rollout_log_function_path": (
        "log_eval_rollout_data",
        ["rollout_id", "args", "data", "extra_metrics"],
    ),
}


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_slime_loads_our_entry_point_with_the_parameters_that_it_passes(flag: str) -> None:
    from slime.utils.misc import load_function

    name, expected = FLAGS[flag]
    found = load_function(f"envkit_slime.{name}")
    assert list(inspect.signature(found).parameters)[: len(expected)] == expected
    if name in ("generate", "reward"):
        assert inspect.iscoroutinefunction(found)


def test_slime_the_third_and_fourth_parameters_are_those_of_the_plugin_contract() -> None:
    # slime/tests/plugin_contracts/test_plugin_generate_contracts.py compares these names.
    from slime.utils.misc import load_function

    parameters = tuple(inspect.signature(load_function("envkit_slime.generate")).parameters)
    assert parameters == ("args", "sample", "sampling_params", "evaluation")


def test_slime_its_own_plugin_contract_tests_pass_with_our_generate_function() -> None:
    from slime.utils.types import Sample

    folder = Path(inspect.getfile(Sample)).parents[2] / "tests" / "plugin_contracts"
    if not folder.is_dir():
        pytest.skip("this slime was installed without its tests")
    done = subprocess.run(
        [
            *(sys.executable, str(folder / "test_plugin_generate_contracts.py")),
            *("--custom-generate-function-path", "fakes.slime_plugin.generate"),
            *("-q", "-p", "no:cacheprovider", f"--rootdir={folder}", "-c", os.devnull),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
