"""A setting that fails every sample ends slime's rollout; no batch of masked samples comes back."""

import asyncio
from argparse import Namespace
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.envs import register_toys
from fakes.models import tiny_model_dir

from envkit.errors import ConfigurationError, EnvkitError, TemplateError
from envkit_slime.rollout import roll
from envkit_slime.runtime import close_runtimes


class PlainForm:
    """What `roll` needs of a trainer, without one."""

    def __init__(self, tokenizer: Any) -> None:
        self.state = SimpleNamespace(tokenizer=tokenizer, processor=None, aborted=False)

    def session_id(self, sample: Any) -> str:
        return f"session-{sample.index}"

    def span(self, sample: Any) -> Any:
        return lambda attributes: nullcontext()  # pyright: ignore[reportUnknownLambdaType]

    def attributes(self, meta_info: dict[str, Any]) -> dict[str, Any]:
        return meta_info

    def request_fields(self, args: Any, sample: Any) -> dict[str, Any]:
        return {}

    def keeps_partial(self, args: Any) -> bool:
        return False


def generate(envkit: Any, tokenizer: Any) -> Any:
    register_toys()
    model = tiny_model_dir("qwen2_5_vl")
    args = Namespace(
        envkit=envkit,
        rollout_seed=1,
        n_samples_per_prompt=4,
        hf_checkpoint=str(model),
        sglang_router_ip="127.0.0.1",
        sglang_router_port=9,
        custom_reward_post_process_path="module.function",
    )
    sample: Any = SimpleNamespace(
        group_index=0, index=1, metadata={}, prompt="", label=None, multimodal_inputs=None
    )
    parameters = {"temperature": 1.0, "max_new_tokens": 30}

    async def play() -> Any:
        form: Any = PlainForm(tokenizer)
        try:
            return await roll(form, args, sample, parameters, evaluation=False)
        finally:
            await close_runtimes()

    return asyncio.run(play())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tiny_model_dir("qwen2_5_vl")))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"env_id": "no-such-v0"},
        {"env_id": "toy-echo-v0", "env_kwargs": {"no_such": 1}},
        {"env_id": "toy-echo-v0", "limits": {"max_turns": "many"}},
        {"env_id": "toy-echo-v0", "sampling": {"temperature": "hot"}},
        {"env_id": "toy-echo-v0", "engine": {"no_such": 1}},
        {"env_id": "toy-echo-v0", "engine": {"timeout_s": "long"}},
        {"env_id": "toy-echo-v0", "max_server_aborts": "many"},
        {"env_id": "toy-echo-v0", "record_dir": 5},
        {"env_id": "toy-echo-v0", "isolation": "docker"},
    ],
)
@pytest.mark.slow
def test_wrong_setting_ends_the_rollout(settings: Any, tokenizer: Any) -> None:
    with pytest.raises(ConfigurationError):
        generate(settings, tokenizer)


def test_template_that_cannot_be_made_exact_ends_the_rollout(tokenizer: Any) -> None:
    import copy

    broken = copy.copy(tokenizer)
    broken.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(TemplateError):
        generate({"env_id": "toy-echo-v0"}, broken)


def test_invalid_tokenizer_ends_the_rollout() -> None:
    with pytest.raises(EnvkitError):
        generate({"env_id": "toy-echo-v0"}, object())
