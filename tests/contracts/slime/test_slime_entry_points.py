"""slime finds our functions by its own loader, and its own plugin contracts accept them."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.slime_run import ECHO, slime_args, text_server

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]

FLAGS = {
    "custom_generate_function_path": ("generate", ["args", "sample", "sampling_params"]),
    "custom_rm_path": ("reward", ["args"]),
    "data_source_path": ("DataSource", ["args"]),
    "custom_reward_post_process_path": ("post_process_rewards", ["args", "samples"]),
    "rollout_sample_filter_path": ("rollout_sample_filter", ["args", "data"]),
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


class RealExample:
    """slime's examples/geo3k_vlm_multi_turn, loaded from its checkout."""

    @staticmethod
    def load() -> Any:
        import importlib

        from slime.utils.types import Sample

        root = Path(inspect.getfile(Sample)).parents[2]
        if not (root / "examples").is_dir():
            pytest.skip("this slime was installed without its examples")
        return importlib.import_module("examples.geo3k_vlm_multi_turn.rollout")


async def test_slime_its_interaction_example_runs_an_envkit_environment() -> None:
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.http_utils import init_http_client
    from slime.utils.types import Sample

    example = RealExample.load()
    with text_server(lambda _: "kiwi") as served:
        args = served.args(ECHO, rollout_interaction_env_path="envkit_slime", max_turns=3)
        init_http_client(args)
        sample = Sample(
            prompt="Repeat this word: kiwi",
            index=0,
            metadata={"envkit": {"task": {"word": "kiwi"}}},
        )
        done = await example.generate(args, sample, GenerateState(args).sampling_params.copy())
    assert done.status is Sample.Status.COMPLETED
    assert done.reward == 1.0  # which the example itself would have dropped
    assert (
        args.rollout_interaction_env_path
        == slime_args(
            served.url, served.model, ECHO, rollout_interaction_env_path="envkit_slime"
        ).rollout_interaction_env_path
    )


async def test_slime_its_interaction_example_goes_on_once_its_own_defect_is_out_of_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.http_utils import init_http_client
    from slime.utils.types import Sample

    example = RealExample.load()
    append = example._append_to_sample

    def repaired(*given: Any, **named: Any) -> None:
        # The example passes log-probabilities of observation tokens, which slime's Sample refuses.
        if named.get("loss_mask_val", 1) == 0:
            given = (*given[:3], None, *given[4:])
        append(*given, **named)

    with text_server(lambda _: "wrong") as served:
        args = served.args(ECHO, rollout_interaction_env_path="envkit_slime", max_turns=3)
        init_http_client(args)
        params = GenerateState(args).sampling_params.copy()
        with pytest.raises(ValueError, match="non-trainable response tokens"):
            await example.generate(args, Sample(prompt="Repeat", index=0), params)
        monkeypatch.setattr(example, "_append_to_sample", repaired)
        done = await example.generate(args, Sample(prompt="Repeat", index=0), params)
    assert "Miss 1." in done.response
    assert "Miss 2." in done.response
    assert done.reward == 0.0
    assert len(done.loss_mask) == done.response_length
