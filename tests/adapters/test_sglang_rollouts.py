"""Whole rollouts against a real SGLang server: each family of environments, then `envkit verify`.

Run by `make contract-sglang`, which starts the servers. The model's replies mean nothing, so no
reward is looked at.
"""

import json
from pathlib import Path

import pytest
from fakes.browsers import needs_browser
from fakes.command import Outcome, run_envkit

from envkit.rollout import role_of, rollout_id_of
from envkit.trajectory import load

pytestmark = pytest.mark.sglang


def _rollout(env_id: str, out: Path, url: str, model: str, *more: str) -> Outcome:
    return run_envkit(
        *("rollout", env_id, "--engine", "sglang", "--base-url", url, "--model", model),
        *("-n", "4", "--group", "2", "--max-new-tokens", "24", "--max-turns", "3"),
        *("--out", out, "--quiet", "--json", *more),
    )


@pytest.mark.parametrize(
    "env_id",
    [
        "geo3k-v0",
        "search-v0",
        "computer-use-v0",
        pytest.param("computer-use-page-v0", marks=needs_browser),
        pytest.param("computer-use-miniwob-v0", marks=needs_browser),
    ],
)
def test_rollout_of_each_family_passes_verify(
    env_id: str, sglang_url: str, sglang_model: str, tmp_path: Path
) -> None:
    played = _rollout(env_id, tmp_path / "run", sglang_url, sglang_model)
    assert played.code == 0, played.err
    checked = json.loads(run_envkit("verify", tmp_path / "run", "--json").out)
    assert checked["is_sound"], checked["problems"]
    assert (checked["trajectories"], checked["trained_tokens"] > 0) == (4, True)
    assert (checked["images"] > 0) == (env_id != "search-v0")
    trajectories = load(tmp_path / "run")
    assert not any(trajectory.is_faulted for trajectory in trajectories)
    assert all(turn.finish_reason for trajectory in trajectories for turn in trajectory.turns)


def test_rollout_of_several_agents_passes_verify(
    sglang_url: str, sglang_model: str, tmp_path: Path
) -> None:
    more = ("--env-kwargs", "solvers=2", "--env-kwargs", "task_env=geo3k-v0")
    played = _rollout("refine-v0", tmp_path / "run", sglang_url, sglang_model, *more)
    assert played.code == 0, played.err
    checked = json.loads(run_envkit("verify", tmp_path / "run", "--json").out)
    assert checked["is_sound"], checked["problems"]
    assert checked["images"] > 0
    roles: dict[str, set[str | None]] = {}
    for trajectory in load(tmp_path / "run"):
        assert not trajectory.is_faulted
        roles.setdefault(rollout_id_of(trajectory), set()).add(role_of(trajectory))
    assert len(roles) == 4
    assert all(len(found) > 1 for found in roles.values())
