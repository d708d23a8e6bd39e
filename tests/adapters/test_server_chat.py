"""Chat endpoints against a real SGLang or vLLM server: the strict fake of the tests follows them.

Run by `make contract-sglang` and `make contract-vllm`. The model is tiny and random: replies mean
nothing, but requests, counts, finish reasons and errors are the server's.
"""

import pytest
from fakes.envs import DotsEnv, EchoEnv

from envkit.env import Env
from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeSpec, Limits, Player, RolloutConfig
from envkit.trajectory import StopReason, Trajectory, check_trajectory
from envkit_chat import ChatEngine


async def played(url: str, model: str, env: Env, **sampling: object) -> Trajectory:
    config = RolloutConfig(
        limits=Limits(max_turns=2), sampling={"max_new_tokens": 8, "temperature": 0.0, **sampling}
    )
    player = Player(ChatEngine(f"{url}/v1", model=model, timeout_s=120), None, config)
    try:
        (one,) = await player.play(env, EpisodeSpec(seed=1))
    finally:
        await player.aclose()
        await player.engine.aclose()
    return one


@pytest.mark.parametrize("env_class", [EchoEnv, DotsEnv])
async def test_real_server_plays_text_and_images(
    server_url: str, server_model: str, env_class: type[Env]
) -> None:
    one = await played(server_url, server_model, env_class())
    assert one.fault is None, one.fault
    assert not one.has_ledger
    assert not check_trajectory(one)
    for turn in one.turns:
        assert turn.prompt_tokens > 10
        assert 1 <= turn.response_tokens <= 8
        assert turn.finish_reason in ("stop", "length")
    first, second = one.turns[0], one.turns[1]
    assert second.prompt_tokens > first.prompt_tokens


async def test_real_server_refuses_an_unknown_path(server_url: str, server_model: str) -> None:
    with pytest.raises(ConfigurationError, match="HTTP 404"):
        await played(f"{server_url}/wrong", server_model, EchoEnv())


async def test_real_server_faults_a_setting_that_it_refuses(
    server_url: str, server_model: str
) -> None:
    one = await played(
        server_url, server_model, EchoEnv(), top_p=1.0, extras={"logit_bias": {"900000": 1}}
    )
    assert one.stop_reason is StopReason.ENGINE_FAULT
    assert one.fault is not None
    assert "HTTP 4" in one.fault.message
