"""Checks of chosen values: seeds at every entry, choices and ranges."""

import json
import math
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import pytest

import envkit
from envkit.errors import ConfigurationError
from envkit.faults import FaultPlan
from envkit.metrics.intervals import mean_interval
from envkit.ranges import at_least, one_of, positive, within
from envkit.registration import make
from envkit.rollout import EpisodeRequest, RolloutConfig
from envkit.rollout.engine import Sampling
from envkit.rollout.plan import RunPlan
from envkit.rollout.setup import EpisodeSpec
from envkit.seeds import checked_seed
from envkit.spaces import UnicodeText
from envkit.wrappers import Curriculum, InjectFaults, LevelProgress, RecordEpisode, SwapImage
from envkit_canary import CanaryEnv
from envkit_certify.blind_report import blind_report
from envkit_certify.certified import Plan
from envkit_desktop.source import DesktopTasks
from envkit_exchange.tasks import TaskDraw
from envkit_geo3k.source import ProceduralSource
from envkit_linux_desktop.source import LinuxDesktopTasks
from envkit_search.world import WorldShape


def _curriculum() -> Curriculum:
    progress = LevelProgress(levels=(1, 2))
    return Curriculum(make("canary-v0"), progress=progress, argument="length")


_BAD = (-1, np.int64(-1), 3.0, np.float64(3), True, np.bool_(True), "3", b"3", [3], np.array(3))
_ENTRIES: dict[str, Callable[[Any], object]] = {
    "env.reset": lambda seed: CanaryEnv().reset(seed=seed),
    "several roles": lambda seed: make("refine-v0").reset(seed=seed),
    "async": lambda seed: make("search-v0").reset(seed=seed),
    "faults.reset": lambda seed: InjectFaults(CanaryEnv()).reset(seed=seed),
    "record.reset": lambda seed: RecordEpisode(CanaryEnv(), "films").reset(seed=seed),
    "curriculum.reset": lambda seed: _curriculum().reset(seed=seed),
    "InjectFaults": lambda seed: InjectFaults(CanaryEnv(), seed=seed),
    "SwapImage": lambda seed: SwapImage(CanaryEnv(), seed=seed),
    "FaultPlan": lambda seed: FaultPlan(seed=seed),
    "EpisodeSpec": lambda seed: EpisodeSpec(seed=seed),
    "EpisodeRequest": lambda seed: EpisodeRequest(env_id="canary-v0", seed=seed),
    "column": lambda seed: EpisodeRequest.from_column({"env_id": "canary-v0", "seed": seed}),
    "RolloutConfig": lambda seed: RolloutConfig(seed=seed),
    "from_mapping": lambda seed: RolloutConfig.from_mapping({"seed": seed}),
    "config.sampling": lambda seed: RolloutConfig(sampling={"seed": seed}),
    "Sampling": lambda seed: Sampling(seed=seed),
    "RunPlan": lambda seed: RunPlan(episodes=1, seeds=[seed]),
    "UnicodeText": lambda seed: UnicodeText(seed=seed),
    "mean_interval": lambda seed: mean_interval([0.1, 0.5, 0.2, 0.9, 0.3], seed=seed),
    "check_env": lambda seed: envkit.check_env(CanaryEnv(), seed=seed, episodes=1),
    "blind_report": lambda seed: blind_report(CanaryEnv(), seed=seed, episodes=1),
    "certify": lambda seed: Plan(target="canary-v0", seed=seed),
    "geo3k": lambda seed: ProceduralSource(seed=seed),
    "desktop": lambda seed: DesktopTasks(seed=seed),
    "linux desktop": lambda seed: LinuxDesktopTasks(seed=seed),
    "world": lambda seed: WorldShape(seed=seed),
    "dataset": lambda seed: TaskDraw("canary-v0", count=1, seed=seed),
}


@pytest.mark.parametrize("entry", _ENTRIES)
def test_seed_is_checked_at_every_entry(entry: str, tmp_path: object) -> None:
    for bad in _BAD:
        with pytest.raises(ConfigurationError, match=r"seed.* must be an integer of at least 0"):
            _ENTRIES[entry](bad)


@pytest.mark.parametrize("entry", _ENTRIES)
def test_seed_from_numpy_is_accepted_at_every_entry(
    entry: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (np.int64(3), np.uint8(0), 2**70):
        _ENTRIES[entry](seed)


def test_seed_becomes_a_python_integer() -> None:
    class Number(IntEnum):
        SEVEN = 7

    assert [type(checked_seed(seed)) for seed in (np.uint64(5), Number.SEVEN, 0)] == [int] * 3
    config = RolloutConfig(seed=np.int32(4), sampling={"seed": np.int64(5)})  # pyright: ignore[reportArgumentType]
    assert json.loads(json.dumps(config.to_mapping()))["seed"] == 4
    request = EpisodeRequest(env_id="canary-v0", seed=np.int64(6))  # pyright: ignore[reportArgumentType]
    assert json.loads(request.to_column())["seed"] == 6
    wrapped = _curriculum()
    wrapped.reset(seed=np.int64(7))  # pyright: ignore[reportArgumentType]
    json.dumps(wrapped.progress.to_json())


class _Pace(StrEnum):
    SLOW = "slow"
    FAST = "fast"


def test_choice_is_returned_and_a_wrong_one_shows_all() -> None:
    assert one_of("pace", "fast", _Pace) == _Pace.FAST
    assert one_of("level", None, (1, 2, None)) is None
    with pytest.raises(ConfigurationError, match="one of 'slow', 'fast', got 'odd'"):
        one_of("pace", "odd", _Pace)
    with pytest.raises(ConfigurationError, match=r"got \[1\]$"):
        one_of("level", [1], {1, 2})  # type: ignore[arg-type]


def test_ranges_allow_the_limit_and_none() -> None:
    at_least(1, turns=1, tokens=None)
    positive(wait_s=1e-9, limit_s=None)
    within(0, 1, low=0, high=1, share=None)


@pytest.mark.parametrize("value", [0, -1, math.nan, -math.inf])
def test_ranges_refuse_what_is_below_the_limit(value: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^turns must be at least 1, got "):
        at_least(1, tokens=2, turns=value)
    with pytest.raises(ConfigurationError, match=r"^wait_s must be positive, got "):
        positive(limit_s=1, wait_s=value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_ranges_refuse_what_is_outside(value: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^share must be 0 to 1, got "):
        within(0, 1, size=1, share=value)
