"""One misbehaving episode of an environment with several agents costs that episode alone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import GuessEnv
from fakes.codecs import text_codec
from fakes.hostile_values import EXCEPTIONS, SURROGATE, BadMapping
from fakes.playing import play_hostile

from envkit.env import Turn
from envkit.rollout import RetryBudget, RolloutConfig, ScriptedEngine, collect
from envkit.tasks import Task
from envkit.trajectory import Trajectory, TrajectoryWriter, verify_file

EPISODES = 16
BAD = 5
BUDGET = RetryBudget(max_env_retries_per_turn=0, max_episode_restarts=0, step_timeout_s=5.0)


class HostileGuessEnv(GuessEnv):
    """A dialogue that misbehaves in one place, in the episode of one task."""

    def __init__(self, place: str, act: Callable[[], Any]) -> None:
        super().__init__()
        self._place, self._act = place, act

    def _at(self, place: str, normal: Callable[[], Any]) -> Any:
        is_bad = self._place == place and self.task.get("index") == BAD
        return self._act() if is_bad else normal()

    def on_reset(self, task: Task) -> Mapping[str, Turn]:
        normal = super().on_reset
        return self._at("on_reset", lambda: normal(task))

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        normal = super().on_replies
        return self._at("on_replies", lambda: normal(replies))

    def on_end(self) -> Mapping[str, float]:
        return self._at("on_end", super().on_end)


def exit_for_the_bad_one(played: Mapping[str, Trajectory]) -> Mapping[str, float]:
    """Make rewards; end the process for one episode."""
    if any(one.task.get("index") == BAD for one in played.values()):
        raise SystemExit(0)
    return {role: one.reward or 0.0 for role, one in played.items()}


def nan_for_the_bad_one(played: Mapping[str, Trajectory]) -> Mapping[str, float]:
    """Make rewards; one episode's are not numbers."""
    is_bad = any(one.task.get("index") == BAD for one in played.values())
    return {role: float("nan") if is_bad else one.reward or 0.0 for role, one in played.items()}


def raising(name: str) -> Callable[[], Any]:
    def act() -> Any:
        raise EXCEPTIONS[name]()

    return act


RAISED = ("exception", "system_exit_0", "keyboard_interrupt", "cancelled", "generator_exit", "mute")
ACTS: dict[str, tuple[str, Callable[[], Any]]] = {
    **{f"{place}_{name}": (place, raising(name))
       for place in ("on_reset", "on_replies", "on_end") for name in RAISED},
    "reset_none": ("on_reset", lambda: None),
    "reset_turn": ("on_reset", lambda: Turn("Begin.")),
    "reset_nobody": ("on_reset", dict),
    "reset_stranger": ("on_reset", lambda: {"judge": Turn("Begin.")}),
    "reset_text": ("on_reset", lambda: {"asker": "Begin."}),
    "reset_surrogate": ("on_reset", lambda: {"asker": Turn(SURROGATE)}),
    "replies_none": ("on_replies", lambda: None),
    "replies_list": ("on_replies", lambda: [Turn("Go on.")]),
    "replies_stranger": ("on_replies", lambda: {"judge": Turn("Go on.")}),
    "replies_number": ("on_replies", lambda: {"asker": 1.0}),
    "replies_mapping": ("on_replies", BadMapping),
    "end_none": ("on_end", lambda: None),
    "end_nan": ("on_end", lambda: {"keeper": float("nan")}),
    "end_text": ("on_end", lambda: {"keeper": "1.0"}),
    "end_stranger": ("on_end", lambda: {"judge": 1.0}),
    "end_huge": ("on_end", lambda: {"keeper": 10**400}),
}  # fmt: skip
MAY_BE_FINE = {"reset_nobody", "reset_surrogate"}


def play(build: Callable[[], GuessEnv], adjust: str | None = None) -> list[Trajectory]:
    """Play a run of dialogues; fail the test if it ends early."""
    codec = text_codec()
    engine = ScriptedEngine(codec, GuessEnv().oracle())
    return play_hostile(
        collect(
            build,
            engine,
            codec,
            episodes=EPISODES,
            concurrency=4,
            tasks=[{"number": 1 + n % 8, "index": n} for n in range(EPISODES)],
            config=RolloutConfig(retries=BUDGET, adjust_rewards=adjust),
        )
    )


def check(played: list[Trajectory], folder: Path, *, may_be_fine: bool) -> None:
    """All other dialogues are whole; the bad one has no reward in any of its roles."""
    by_group: dict[int, list[Trajectory]] = {}
    for one in played:
        by_group.setdefault(one.metadata["group"], []).append(one)
    assert set(by_group) == set(range(EPISODES))
    for number, roles in by_group.items():
        if number != BAD:
            assert sorted((one.metadata["role"], one.reward) for one in roles) == [
                ("asker", 1.0),
                ("keeper", 0.5),
            ]
        elif not may_be_fine:
            for one in roles:
                assert one.is_faulted
                assert one.reward is None
                assert one.trained_token_count == 0
                assert one.fault is not None
                assert one.fault.message.strip()
    with TrajectoryWriter(folder) as writer:
        for one in played:
            writer.write(one)
    report = verify_file(folder)
    assert report.is_sound, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTS)
def test_one_hostile_dialogue_costs_that_dialogue_alone(name: str, tmp_path: Path) -> None:
    place, act = ACTS[name]
    played = play(lambda: HostileGuessEnv(place, act))
    check(played, tmp_path / "run", may_be_fine=name in MAY_BE_FINE)


@pytest.mark.parametrize("adjust", ["exit_for_the_bad_one", "nan_for_the_bad_one"])
def test_rewards_that_cannot_be_adjusted_cost_their_episode_alone(
    adjust: str, tmp_path: Path
) -> None:
    played = play(GuessEnv, f"{__name__}:{adjust}")
    check(played, tmp_path / "run", may_be_fine=False)


def test_dialogues_without_an_attack_are_whole(tmp_path: Path) -> None:
    played = play(lambda: HostileGuessEnv("nowhere", lambda: None))
    assert len(played) == 2 * EPISODES
    assert all(one.reward is not None for one in played)
    check(played, tmp_path / "run", may_be_fine=True)
