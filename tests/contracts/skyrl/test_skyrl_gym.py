"""envkit's environments under SkyRL's own generators."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import skyrl_gym
from fakes.codecs import text_codec, vision_codec
from fakes.models import tiny_model_dir
from fakes.skyrl_client import FakeClient, Policy
from fakes.skyrl_envs import WORLD, ObeyEnv, register_skyrl_envs
from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.utils.trainer_utils import validate_generator_output
from transformers import AutoTokenizer

from envkit.errors import ConfigurationError, EnvFault, EpisodeStateError
from envkit.rollout import ENVKIT_COLUMN, EpisodeRequest
from envkit_skyrl import SkyRLEnv, register

Play = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def known() -> None:
    register_skyrl_envs()
    ObeyEnv.flaked.clear()
    WORLD.clear()


def make(env_id: str = "obey-v0", **columns: Any) -> SkyRLEnv:
    request = EpisodeRequest(env_id=env_id, env_kwargs=columns.pop("env_kwargs", {}))
    return SkyRLEnv(extras={ENVKIT_COLUMN: request.to_column(), **columns})


def play(policy: Policy, env: str, *, step_wise: bool = False, samples: int = 3) -> Any:
    """Play one group in SkyRL's real generator."""
    config, gym = GeneratorConfig(), SkyRLGymConfig()
    config.step_wise_trajectories, config.max_turns = step_wise, 5
    config.max_input_length = 10_000
    config.sampling_params.max_generate_length, config.sampling_params.logprobs = 32, 0
    loader: Any = AutoTokenizer
    client = FakeClient(text_codec(), policy)
    generator = SkyRLGymGenerator(
        generator_cfg=config,
        skyrl_gym_cfg=gym,
        inference_engine_client=client,  # pyright: ignore[reportArgumentType]
        tokenizer=loader.from_pretrained(tiny_model_dir("llama")),
    )
    batch: Any = {
        "prompts": [[{"role": "user", "content": "from the dataset"}] for _ in range(samples)],
        "env_classes": [env] * samples,
        "env_extras": [{} for _ in range(samples)],
        "sampling_params": None,
        "batch_metadata": None,
        "trajectory_ids": [TrajectoryID("u", member) for member in range(samples)],
    }
    return asyncio.run(generator.generate(batch, disable_tqdm=True)), client


@pytest.mark.parametrize("env_id", ["obey-v0", "plain-v0"])
@pytest.mark.parametrize("step_wise", [False, True])
def test_skyrls_own_generator_plays_an_envkit_environment(env_id: str, step_wise: bool) -> None:
    name = register(env_id)
    output, client = play(
        lambda ask: "good" if ask.member == 0 else "bad", name, step_wise=step_wise
    )
    validate_generator_output(3, output, step_wise=step_wise)
    ends = output.get("is_last_step") or [True] * 3
    scores = [sum(row) for row in output["rewards"]]
    assert sum(scores[: ends.index(True) + 1]) == 0.75
    assert sum(scores[ends.index(True) + 1 :]) == 0.0
    text = text_codec().decode(output["prompt_token_ids"][0])
    assert "Obey." in text
    assert "Do task" in text
    assert "from the dataset" not in text
    assert len(client.requests) == 9
    assert WORLD["built"] == WORLD["closed"] == 3
    assert output["rollout_metrics"]["environment/turns"] == 3.0


def test_members_of_a_group_start_from_one_state() -> None:
    output, _ = play(lambda ask: "end", register("obey-v0"))
    assert len({tuple(prompt) for prompt in output["prompt_token_ids"]}) == 1


def test_nothing_is_observed_after_the_end() -> None:
    env = make(env_kwargs={"last_words": True, "rounds": 1})
    env.init([])
    step = env.step("good")
    assert step["done"] is True
    assert step["observations"] == []
    env.close()


def test_skyrls_turn_limit_ends_an_episode() -> None:
    env = make(max_turns=2)
    env.init([])
    assert [env.step("bad")["done"] for _ in range(2)] == [False, True]
    env.close()


def test_a_step_that_fails_is_played_again_in_a_fresh_environment() -> None:
    env = make()
    env.init([])
    env.step("good")
    step = env.step("flaky")
    assert step["observations"][0]["content"].startswith("Go on.")
    assert env.turns == 2
    assert (WORLD["built"], WORLD["closed"]) == (2, 1)
    env.close()
    env.close()
    assert WORLD["closed"] == 2


def test_an_environment_that_fails_for_good_is_closed_and_named() -> None:
    env = make()
    env.init([])
    with pytest.raises(EnvFault, match=r"obey-v0 failed in turn 0: EnvFault: the backend is gone"):
        env.step("boom")
    assert WORLD["built"] == WORLD["closed"] == 3
    with pytest.raises(EpisodeStateError):
        env.step("good")
    env.close()


def test_pictures_are_openai_parts() -> None:
    env = make(env_kwargs={"pictures": True})
    messages, _ = env.init([])
    system, user = messages
    assert system["role"] == "system"
    parts = user["content"]
    assert sorted(part["type"] for part in parts) == ["image_url", "text"]
    uri = next(part["image_url"]["url"] for part in parts if part["type"] == "image_url")
    assert uri.startswith("data:image/png;base64,")
    env.close()


def test_skyrls_vision_generator_plays_pictures() -> None:
    from skyrl.train.generators import skyrl_vlm_generator as module

    codec = vision_codec()
    config = GeneratorConfig()
    config.max_turns, config.max_input_length = 5, 10_000
    config.sampling_params.max_generate_length = 32
    rendered: list[int] = []

    class Client(FakeClient):
        async def render_chat_completion(self, request_payload: Any) -> dict[str, Any]:
            messages = request_payload["json"]["messages"]
            parts = [
                part
                for entry in messages
                if isinstance(entry["content"], list)
                for part in entry["content"]
            ]
            rendered.append(sum(part["type"] == "image_url" for part in parts))
            return {"token_ids": [5, 6, 7], "features": None}

    loader: Any = AutoTokenizer
    generator = module.SkyRLVLMGymGenerator(
        generator_cfg=config,
        skyrl_gym_cfg=SkyRLGymConfig(),
        inference_engine_client=Client(codec, lambda ask: "good"),  # pyright: ignore[reportArgumentType]
        tokenizer=loader.from_pretrained(tiny_model_dir("qwen2_5_vl")),
    )
    batch: Any = {
        "prompts": [[{"role": "user", "content": "look"}]],
        "env_classes": [register("obey-v0", name="shown", env_kwargs={"pictures": True})],
        "env_extras": [{}],
        "sampling_params": None,
        "batch_metadata": None,
        "trajectory_ids": [TrajectoryID("u", 0)],
    }
    output: Any = asyncio.run(generator.generate(batch, disable_tqdm=True))
    assert sum(output["rewards"][0]) == 0.75
    assert rendered == [1, 1, 2, 3]


def test_tools_are_described_in_the_system_message() -> None:
    from fakes.envs import register_toys

    register_toys()
    env = make("toy-adder-v0")
    (system, _), _ = env.init([])
    assert '"name": "add"' in system["content"]
    env.close()


def test_register_is_idempotent_and_refuses_another_environment() -> None:
    assert register("obey-v0", name="twice") == register("obey-v0", name="twice")
    with pytest.raises(ConfigurationError, match="another environment 'twice'"):
        register("plain-v0", name="twice")
    with pytest.raises(ConfigurationError, match="another environment 'gsm8k'"):
        register("plain-v0", name="gsm8k")
    made = skyrl_gym.make("twice", env_config={}, extras={"max_turns": 3})
    assert isinstance(made, SkyRLEnv)


def test_a_row_without_an_environment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no environment is named"):
        SkyRLEnv(extras={})
