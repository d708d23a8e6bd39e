"""Episodes with a history policy, and what must hold of each."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.branching import Screens, reply
from fakes.codecs import vision_codec
from fakes.templates import make_codec

from envkit import rollout
from envkit.env import Observation, Turn
from envkit.trajectory import (
    FaultPlace,
    StopReason,
    Trajectory,
    check_trajectory,
    load,
    save,
    verify_file,
)

NO_RESTART = rollout.RetryBudget(max_episode_restarts=0)
LAST_TWO = "fakes.own_histories:last_two"


def setting_of(monkeypatch: pytest.MonkeyPatch, policy: Any) -> str:
    """Return a setting that names a policy."""
    monkeypatch.setitem(globals(), "chosen", policy)
    return f"{__name__}:chosen"


async def run(
    history: Any,
    *,
    env: Any = None,
    images: bool = False,
    script: Any = reply,
    template: str = "qwen3",
    interrupt: rollout.Interrupt | None = None,
    **options: Any,
) -> Trajectory:
    codec = vision_codec() if images else make_codec(template)
    config = rollout.RolloutConfig(history=history, sanity_share=1.0, **options)
    player = rollout.Player(rollout.ScriptedEngine(codec, script), codec, config)
    try:
        (trajectory,) = await player.play(
            env or Screens(images=images), rollout.EpisodeSpec(seed=3), interrupt=interrupt
        )
    finally:
        await player.aclose()
    return trajectory


def assert_history_fault(trajectory: Trajectory, text: str, tmp_path: Path) -> None:
    assert trajectory.stop_reason is StopReason.LEDGER_FAULT
    assert trajectory.fault is not None
    assert trajectory.fault.where is FaultPlace.HISTORY, trajectory.fault
    assert text in trajectory.fault.message
    assert trajectory.reward is None
    assert_verifies(trajectory, tmp_path)


def assert_verifies(trajectory: Trajectory, tmp_path: Path) -> None:
    assert check_trajectory(trajectory) == ()
    save(trajectory, tmp_path / "stored.jsonl")
    assert verify_file(tmp_path / "stored.jsonl").is_sound
    (stored,) = load(tmp_path / "stored.jsonl")
    assert stored.messages == trajectory.messages


def assert_played(trajectory: Trajectory, tmp_path: Path) -> None:
    assert_sound(trajectory)
    assert trajectory.reward == 6.0
    assert_verifies(trajectory, tmp_path)


def assert_sound(trajectory: Trajectory) -> None:
    """No fault, and each sampled token is trained once."""
    assert trajectory.fault is None, trajectory.fault
    assert check_trajectory(trajectory) == ()
    rows = trajectory.steps(merge=True)
    assert sum(sum(row.loss_mask) for row in rows) == trajectory.sampled_token_count


class Long(Screens):
    """Says more than fits in its fourth turn, and can say it shorter."""

    rooms: ClassVar[list[int]] = []

    def on_turn(self, response_text: str) -> Turn:
        text = "long " * 400 if self.turn == 3 else f"Screen {self.turn + 1}."
        return Turn(text, reward=1.0)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        type(self).rooms.append(tokens)
        return {**observation, "text": "long " * max(1, (tokens - 20) // 2)}


class Hidden(type):
    """Ends the process of whoever reads the name of a class."""

    def __getattribute__(cls, name: str) -> Any:
        if name == "__name__":
            raise SystemExit(name)
        return super().__getattribute__(name)


class HiddenError(BaseException, metaclass=Hidden):
    """An error whose type cannot be named."""


class HiddenClass:
    """An object whose class cannot be read."""

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise SystemExit("class")
