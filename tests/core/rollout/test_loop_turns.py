"""What a turn of an episode records, and when a reply is sampled again."""

from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.playing import play_one
from fakes.staged import Answering, Staged, Unsaved

from envkit.errors import MissingDependencyError
from envkit.rollout import RetryBudget
from envkit.tasks import ListSource
from envkit.trajectory import StopReason, Trajectory

ONCE = RetryBudget(max_episode_restarts=0, max_env_retries_per_turn=0, resample_on_parse_error=1)


async def played(env: Any, engine: Any = None, *, retries: RetryBudget = ONCE) -> Trajectory:
    return await play_one(env, engine or Answering(), text_codec(), seed=3, retries=retries)


class Told(Staged):
    """Has a system prompt, and one task."""

    system_prompt = "Answer with one word."

    def __init__(self) -> None:
        super().__init__()
        self.tasks = ListSource([{"word": "go"}])


async def test_episode_starts_with_the_system_prompt_of_its_environment() -> None:
    trajectory = await played(Told)
    assert trajectory.messages[0]["role"] == "system"
    shown = text_codec().decode(trajectory.segments[0].wire_ids)
    assert "Answer with one word." in shown
    assert shown.index("Answer with one word.") < shown.index("Begin.")


async def test_episode_records_the_task_that_its_environment_drew() -> None:
    assert (await played(Told)).task == {"word": "go"}


async def test_reply_is_kept_if_the_environment_cannot_take_the_step_back() -> None:
    engine = Answering(policy=lambda context: "bad")
    trajectory = await played(lambda: Unsaved(turns=1), engine)
    assert [turn.resamples for turn in trajectory.turns] == [0]
    assert trajectory.turns[0].info["said"] == ["bad"]
    assert len(engine.requests) == 1
    assert trajectory.stop_reason is StopReason.TERMINATED


async def test_module_that_a_reset_lacks_is_a_missing_dependency() -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'absent'", name="absent")

    with pytest.raises(MissingDependencyError, match="absent"):
        await played(lambda: Staged({"reset": fail}))
