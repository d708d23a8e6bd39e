"""Several agents through miles' real rollout: one sample for each role."""

import asyncio
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.agents import register_agents
from fakes.slime_run import text_server

from envkit.errors import ConfigurationError

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_miles")]

GUESS = {"env_id": "toy-guess-v0", "env_kwargs": {"max_turns": 4}}
PARAMS: dict[str, Any] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 512, "stop": None,
    "stop_token_ids": None, "skip_special_tokens": False, "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}  # fmt: skip


@cache
def tokenizer_of(model: str) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(model)


@pytest.mark.usefixtures("needs_miles_main")
async def test_miles_gets_a_sample_of_each_role_with_one_rollout_id() -> None:
    rolled = await roll()
    assert [len(siblings) for siblings in rolled] == [2, 2]
    for index, siblings in enumerate(rolled):
        assert [one.metadata["envkit_episode"]["role"] for one in siblings] == ["asker", "keeper"]
        assert {one.rollout_id for one in siblings} == {index}
        assert [one.reward for one in siblings] == [0.0, 0.25]
        for one in siblings:
            one.validate()


async def test_miles_release_takes_siblings_only_with_a_mean_over_tokens() -> None:
    from miles.utils.types import Sample

    if hasattr(Sample, "rollout_id"):
        pytest.skip("this miles counts the rollouts of siblings")
    with pytest.raises(ConfigurationError, match="--calculate-per-token-loss"):
        await roll()
    assert [len(siblings) for siblings in await roll(calculate_per_token_loss=True)] == [2, 2]


async def roll(**flags: Any) -> Any:
    """Roll out a group of two episodes."""
    from miles.rollout.inference_rollout.compatibility import load_generate_function
    from miles.rollout.inference_rollout.inference_rollout_common import generate_and_rm_group
    from miles.utils.types import Sample

    register_agents()
    column = {**GUESS, "task": {"number": 3}}
    group = [Sample(group_index=0, index=n, metadata={"envkit": dict(column)}) for n in range(2)]
    with text_server(lambda _: "5") as served:
        args = served.args(
            GUESS,
            custom_generate_function_path="envkit_miles.generate",
            custom_reward_post_process_path="envkit_slime.post_process_rewards",
            **flags,
        )
        args.sglang_router_policy = args.router_policy = None
        state = SimpleNamespace(
            args=args,
            tokenizer=tokenizer_of(args.hf_checkpoint),
            processor=None,
            aborted=False,
            generate_fn_semaphore=asyncio.Semaphore(64),
            generate_function=load_generate_function("envkit_miles.generate"),
        )
        return await generate_and_rm_group(state, group, dict(PARAMS))
