"""`envkit rollout --wrap`: wrappers by name, with arguments."""

from pathlib import Path

import gymnasium
import pytest
from fakes.command import run_envkit
from fakes.envs import EchoEnv
from fakes.models import tiny_model_dir

import envkit
from envkit.cli.play_options import Wrap
from envkit.errors import ConfigurationError, ContractError, UnknownNameError
from envkit.trajectory import Trajectory, load
from envkit.wrappers import WRAPPERS, Curriculum, wrapping


def rollout(out: Path, env_id: str, *options: object, episodes: int = 8) -> list[Trajectory]:
    outcome = run_envkit(
        "rollout", env_id, "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", episodes, "--concurrency", 1, "--out", out, "-q", *options,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    return list(load(out))


def test_the_command_offers_every_wrapper() -> None:
    assert {member.value for member in Wrap} == set(WRAPPERS)


@pytest.mark.slow
def test_inject_faults_is_survived(tmp_path: Path) -> None:
    played = rollout(
        tmp_path / "run", "canary-v0", "--wrap", "inject-faults", "--wrap-kwargs", "rate=0.5",
        "--wrap-kwargs", "worst_attempts=1", "--wrap-kwargs", 'kinds=["transient"]',
    )  # fmt: skip

    assert [t.reward for t in played] == [pytest.approx(1.0)] * 8
    assert sum(sum(turn.env_retries.values()) for t in played for turn in t.turns) > 2
    assert played[0].metadata["wrap_kwargs"] == {
        "rate": 0.5, "worst_attempts": 1, "kinds": ["transient"],
    }  # fmt: skip


@pytest.mark.slow
def test_curriculum_climbs_with_the_oracle(tmp_path: Path) -> None:
    played = rollout(
        tmp_path / "run", "geo3k-v0", "--wrap", "curriculum", "--wrap-kwargs", "levels=[1,3]",
        "--wrap-kwargs", "window=3",
    )  # fmt: skip

    assert [t.task["level"] for t in played] == [1, 1, 1, 3, 3, 3, 3, 3]
    assert [t.reset_info["curriculum_level"] for t in played] == [1, 1, 1, 3, 3, 3, 3, 3]


def test_rescale_reward_changes_the_trajectorys_reward(tmp_path: Path) -> None:
    played = rollout(
        tmp_path / "run", "canary-v0", "--wrap", "rescale-reward", "--wrap-kwargs", "scale=3.0",
        episodes=2,
    )  # fmt: skip

    assert [t.reward for t in played] == [pytest.approx(3.0)] * 2


def test_wrappers_by_name_say_what_is_wrong() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'blank-image'"):
        wrapping("blank-images", {})
    with pytest.raises(ConfigurationError, match="curriculum cannot be built with"):
        wrapping("curriculum", {"window": 3})
    with pytest.raises(ConfigurationError, match="blank-image cannot be built with"):
        wrapping("blank-image", {"gray": 3})(EchoEnv())
    with pytest.raises(ConfigurationError, match="grey must be from 0 to 255"):
        wrapping("blank-image", {"grey": 300})(EchoEnv())
    with pytest.raises(ContractError, match=r"wraps an envkit\.Env"):
        wrapping("blank-image", {"grey": 3})(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_environments_of_one_wrapping_share_the_progress() -> None:
    wrap = wrapping("curriculum", {"levels": [1, 2]})
    first, second = (wrap(envkit.make("geo3k-v0")) for _ in range(2))

    assert isinstance(first, Curriculum)
    assert isinstance(second, Curriculum)
    assert first.progress is second.progress
