"""Advantages by turn: the estimator that verl's V1 trainer calls for `envkit_turns`."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.verl_checks import model_runs
from fakes.verl_worker import Bench, Sample, composed
from verl.protocol import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest
from envkit_verl import advantages
from envkit_verl.settings import TURNS

Make = Callable[..., Bench]
ROOT = Path(__file__).resolve().parents[3]


def steps(**kwargs: Any) -> str:
    return EpisodeRequest(env_id="verl-steps-v0", env_kwargs=kwargs).to_column()


def by_turn(rows: list[dict[str, Any]], *, gamma: float, is_scaled: bool) -> list[list[float]]:
    """Return one advantage for each reply, from verl's own call of the estimator."""
    config = composed("unused", algorithm__gamma=gamma, algorithm__adv_estimator=TURNS).algorithm
    config.norm_adv_by_std_in_grpo = is_scaled
    pad = torch.nn.utils.rnn.pad_sequence
    data = DataProto.from_single_dict({
        "response_mask": pad([row["response_mask"] for row in rows], batch_first=True),
        "token_level_rewards": pad([row["rm_scores"] for row in rows], batch_first=True),
        "uid": np.array([row["uid"] for row in rows], dtype=object),
    })  # fmt: skip
    out = compute_advantage_for_multi_trajectories(
        data, [row["key"] for row in rows], TURNS, config=config
    )
    found: list[list[float]] = []
    for row, values in zip(rows, out.batch["advantages"], strict=True):
        assert not values[: len(row["responses"])][row["response_mask"] == 0].any()
        runs = [values[start:end] for start, end in model_runs(row["response_mask"].tolist())]
        assert all((run == run[0]).all() for run in runs)
        found.append([float(run[0]) for run in runs])
    return found


async def test_verl_turns_are_compared_with_the_same_turn_of_the_group(bench: Make) -> None:
    """Two of three turns are right in different places: an episode's own sum would be a tie."""
    replies = iter(["up", "no", "no", "up", "up", "up"])  # the two members take turns
    run = await bench("v1", lambda *_: next(replies)).run([Sample(envkit=steps())], n=2)
    rows = sorted(run.rows, key=lambda row: row["key"])
    assert [row["turn_scores"] for row in rows] == [[0.25, 0.0, 0.25], [0.0, 0.25, 0.25]]
    assert advantages.turn_estimator  # registered with verl by its import
    own = by_turn(rows, gamma=0.0, is_scaled=False)
    assert own == [[0.125, -0.125, 0.0], [-0.125, 0.125, 0.0]]
    summed = by_turn(rows, gamma=1.0, is_scaled=False)
    assert summed == [[0.0, -0.125, 0.0], [0.0, 0.125, 0.0]]
    scaled = by_turn(rows, gamma=0.0, is_scaled=True)
    assert scaled[0] == pytest.approx([0.5**0.5, -(0.5**0.5), 0.0], abs=1e-4)


async def test_verl_turns_of_padding_rows_count_nowhere(bench: Make) -> None:
    replies = iter(["up", "no"])
    made = bench("v1", lambda *_: next(replies))
    rows = (await made.run([Sample(envkit=steps(rounds=1))], n=2)).rows
    masked = dict(rows[0], response_mask=torch.zeros_like(rows[0]["response_mask"]), key="u0_9_0")
    found = by_turn([*rows, masked], gamma=1.0, is_scaled=False)
    assert sorted(found[:2]) == [[-0.125], [0.125]]


@pytest.mark.parametrize(
    ("version", "loop"), [("v0", {}), ("v1", {"rewards": "last"})], ids=["v0", "last"]
)
async def test_verl_turns_need_the_reward_of_each_turn(
    bench: Make, version: str, loop: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = bench(version, lambda *_: "up", loop=loop, algorithm__adv_estimator=TURNS)
    if version == "v0":
        with pytest.raises(ConfigurationError, match="use_v1=true"):
            await made.run([Sample(envkit=steps())])
    else:
        assert (await made.run([Sample(envkit=steps())])).rows == []
        assert "rewards: turns" in caplog.text


def test_verl_finds_the_estimator_by_its_plugin(tmp_path: Path) -> None:
    """verl loads the entry points `verl.plugins` of installed distributions when it is imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "envkit_rl-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: envkit-rl\nVersion: 0\n")
    (entry,) = project["entry-points"]["verl.plugins"].items()
    (folder / "entry_points.txt").write_text("[verl.plugins]\n{} = {}\n".format(*entry))
    code = (
        "import verl; from verl.trainer.ppo.core_algos import get_adv_estimator_fn; "
        f"print(get_adv_estimator_fn('{TURNS}').__module__)"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith("envkit_verl.advantages")
