"""What of the TRL adapter works without TRL: imports, settings, its thread, finding requests."""

import asyncio
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.processes import run_python

import envkit_trl
from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.rollout import EpisodeRequest, Limits, RolloutConfig
from envkit.threads.workers import gather_or_cancel
from envkit_trl.loop_thread import LoopThread
from envkit_trl.requests import RequestIndex, row_request
from envkit_trl.settings import (
    check_arguments,
    rollout_settings,
    warn_of_worker_arguments,
)

needs_no_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is not None, reason="TRL is installed here"
)


def _args(**changes: Any) -> Any:
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_completion_length": 64}
    return SimpleNamespace(**values, **changes)


@pytest.mark.slow
def test_trl_adapter_imports_neither_trl_nor_torch() -> None:
    code = (
        "import sys, envkit_trl; envkit_trl.make_rollout_func, envkit_trl.environment_factory; "
        "sys.exit(any(name in sys.modules for name in ('trl', 'torch', 'datasets')))"
    )
    run_python("-c", code)


def test_trl_adapter_has_every_name_that_it_lists_and_no_other() -> None:
    lazy = set(envkit_trl.__all__) - {"EnvAsyncGRPOTrainer", "EnvGRPOTrainer"}
    assert all(hasattr(envkit_trl, name) for name in lazy)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = envkit_trl.no_such_name


@needs_no_trl
def test_trl_missing_is_said_with_the_line_that_installs_it() -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[trl\]'"):
        _ = envkit_trl.EnvGRPOTrainer


@pytest.mark.parametrize(
    "changes",
    [
        {"use_vllm": True},
        {"min_p": 0.1},
        {"min_p": 0.0},
        {"generation_kwargs": {"no_repeat_ngram_size": 3}},
        {"cache_implementation": "static"},
        {"max_tool_calling_iterations": 0},
        {"use_transformers_continuous_batching": True},
        {"fork_threshold_tokens": 0},
    ],
    ids=str,
)
def test_trl_foreign_arguments_are_named(changes: dict[str, Any]) -> None:
    check_arguments(_args(), who="the adapter", has_codec=True)
    with pytest.raises(ConfigurationError, match=next(iter(changes))):
        check_arguments(_args(**changes), who="the adapter", has_codec=False)


def test_trl_arguments_of_its_own_worker_are_logged_with_what_replaces_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_of_worker_arguments(_args(max_inflight_tasks=-1, queue_maxsize=1024))
    assert not caplog.records
    warn_of_worker_arguments(_args(max_inflight_tasks=0, queue_maxsize=8, log_completions=True))
    assert [record.getMessage().split("=")[0] for record in caplog.records] == [
        "max_inflight_tasks",
        "queue_maxsize",
        "log_completions",
    ]
    assert "use groups_at_once" in caplog.text


def test_trl_template_arguments_belong_to_a_codec_that_is_given() -> None:
    args = _args(chat_template_kwargs={"enable_thinking": False})
    check_arguments(args, who="the adapter", has_codec=False)
    with pytest.raises(ConfigurationError, match=r"enable_thinking.*template_kwargs instead"):
        check_arguments(args, who="the adapter", has_codec=True)


def test_trl_sampling_is_the_trainers_unless_configured() -> None:
    config = RolloutConfig.from_mapping({"sampling": {"max_new_tokens": 9, "top_p": 0.5}})
    _, sampling = rollout_settings(_args(), config)
    assert (sampling.max_new_tokens, sampling.top_p, sampling.top_k) == (9, 0.5, None)
    hot = RolloutConfig.from_mapping({"sampling": {"temperature": 2.0}})
    with pytest.raises(ConfigurationError, match="temperature"):
        rollout_settings(_args(), hot)


@pytest.mark.parametrize(("given", "expected"), [(None, 64), (10, 10), (100, 64)])
def test_trl_completion_length_bounds_the_response(given: int | None, expected: int) -> None:
    config = RolloutConfig(limits=Limits(max_response_tokens=given, max_turns=3))
    limits = rollout_settings(_args(), config)[0].limits
    assert (limits.max_response_tokens, limits.max_turns) == (expected, 3)


def test_trl_index_prefers_a_rows_request_and_falls_back_to_the_configured_one() -> None:
    default = EpisodeRequest(env_id="toy-echo-v0")
    index = RequestIndex(RolloutConfig(env_id="toy-echo-v0"))
    assert index.find("anything") == default
    asked = EpisodeRequest(env_id="toy-echo-v0", seed=3)
    index.add([{"prompt": "p", "envkit": asked.to_column()}])
    assert index.find("p") == asked
    with pytest.raises(ConfigurationError, match="has this prompt"):
        index.find("q")


def test_trl_row_with_columns_that_no_episode_reads_is_refused() -> None:
    """As with a dataset of questions beside `env_id`: the curve would look healthy."""
    config = RolloutConfig(env_id="toy-echo-v0")
    drawn = EpisodeRequest(env_id="toy-echo-v0")
    for row in ({"prompt": "go"}, {"prompt": "go", "environment": "a", "answer": None}):
        assert row_request(row, config) == drawn
    for unread in ("answer", "image", "Envkit"):
        with pytest.raises(ConfigurationError, match="no episode of toy-echo-v0 reads it"):
            row_request({"prompt": "go", unread: ""}, config)
        with pytest.raises(ConfigurationError, match="no episode of toy-echo-v0 reads it"):
            RequestIndex(config).add([{"prompt": "go", unread: ""}])
    allowed = RolloutConfig(env_id="toy-echo-v0", draw_tasks=True)
    assert row_request({"prompt": "go", "answer": "4"}, allowed) == drawn


def test_trl_thread_runs_coroutines_passes_errors_on_and_ends() -> None:
    thread = LoopThread()

    async def fail() -> None:
        raise ValueError("no")

    assert thread.run(asyncio.sleep(0, result=7)) == 7
    with pytest.raises(ValueError, match="no"):
        thread.run(fail())
    thread.close()
    thread.close()


async def test_trl_first_error_cancels_the_other_episodes() -> None:
    cancelled: list[int] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await gather_or_cancel([wait(), fail(), wait()])
    assert cancelled == [1, 1]
