"""Gradients of TRL's real losses against the plain formula, also over two processes."""

import os
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from fakes.gradients import Compared, GradientPath, Verdict
from fakes.gradients.formula import plain_backward
from fakes.gradients.of_trl import GRADIENTS
from fakes.gradients.suite import measure
from fakes.trl_gradient import CASE, STEPS, policy_and_episodes


@pytest.mark.parametrize("path", GRADIENTS, ids=lambda path: path.name)
def test_trl_gradient_is_that_of_the_plain_formula(compared: Compared, path: GradientPath) -> None:
    found = compared([path])
    good = (Verdict.EQUAL, Verdict.EXPLAINED, Verdict.FOUND)
    wrong = [one for one in found if one.verdict not in good]
    assert not wrong, "\n".join(map(str, wrong))
    explained = [one for one in found if one.verdict is Verdict.EXPLAINED]
    assert all(one.case.is_scaled for one in explained)  # TRL's epsilon, and nothing else
    assert bool(explained) == (path.name != "trl-async")


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the gradients that two processes compute together, by path and set."""
    file = tmp_path_factory.mktemp("ranks") / "gradients.npz"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-m", "fakes.trl_gradient", str(file)]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **address, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in ("0", "1")
    ]
    try:
        assert [rank.wait(300) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    return np.load(file)


@pytest.mark.parametrize(("path", "episodes"), STEPS)
def test_trl_gradient_of_two_ranks_is_that_of_one(
    of_two_ranks: Any, path: str, episodes: str
) -> None:
    policy, trajectories = policy_and_episodes(episodes)
    plain_backward(policy, trajectories, CASE)
    cosine, ratio = measure(of_two_ranks[f"{path} {episodes}"], policy.take_gradient())
    assert cosine >= 1 - 1e-6
    assert ratio == pytest.approx(1.0, abs=1e-4)
