"""Served episodes are bounded and released, whatever a client or an environment does."""

import asyncio
import threading
from typing import Any

import pytest

from envkit.env import Env, Turn
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit_mcp.episodes import EpisodeLimits, Episodes, UnplayableError


class Room(Env):
    """Ends at "end"; fails, waits or counts as it is told. Keeps which instances are open."""

    open_rooms: set[int] = set()  # noqa: RUF012  # shared on purpose
    door = threading.Event()

    def __init__(self) -> None:
        super().__init__(max_turns=3)
        self.open_rooms.add(id(self))

    def on_reset(self, task: Any) -> Turn:
        if task.get("broken"):
            raise ConfigurationError("the task is broken")
        return Turn("Say something.")

    def on_turn(self, response_text: str) -> Turn:
        if response_text == "fail":
            raise EnvFault("the backend is gone", kind=FaultKind.TRANSIENT)
        if response_text == "bug":
            raise ZeroDivisionError("a bug")
        if response_text == "exit":
            raise SystemExit(3)
        if response_text == "cancel":
            raise asyncio.CancelledError
        if response_text == "wait":
            self.door.wait(60)
        return Turn(f"You said {response_text}.", reward=1.0, done=response_text == "end")

    def close(self) -> None:
        self.open_rooms.discard(id(self))


@pytest.fixture(autouse=True)
def _doors() -> Any:
    Room.open_rooms.clear()
    Room.door.clear()
    yield
    Room.door.set()


def episodes(**limits: Any) -> Episodes:
    return Episodes(Room, EpisodeLimits(**limits))


async def test_episode_is_released_with_its_last_step() -> None:
    playing = episodes()
    started = await playing.reset(seed=1, task=None)
    assert started.observation["text"] == "Say something."
    assert started.state["max_turns"] == 3
    played = await playing.step(started.handle, "hello")
    assert played.observation["text"] == "You said hello."
    assert (len(playing), len(Room.open_rooms)) == (1, 1)
    last = await playing.step(started.handle, "end")
    assert last.state["terminated"]
    assert (len(playing), len(Room.open_rooms)) == (0, 0)
    with pytest.raises(UnplayableError, match="it ended with its last step"):
        await playing.step(started.handle, "again")
    with pytest.raises(UnplayableError, match="there is no episode"):
        await playing.step("unknown", "again")


async def test_episodes_are_bounded_and_a_closed_one_makes_room() -> None:
    playing = episodes(max_episodes=2)
    first, _ = [await playing.reset(seed=1, task=None) for _ in range(2)]
    with pytest.raises(UnplayableError, match="all 2 episodes"):
        await playing.reset(seed=1, task=None)
    await playing.close(first.handle)
    await playing.reset(seed=1, task=None)
    results = await asyncio.gather(
        *(playing.reset(seed=1, task=None) for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(one, UnplayableError) for one in results)
    await playing.aclose()
    assert (len(playing), Room.open_rooms) == (0, set())


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("fail", r"failed \(transient\): the backend"),
        ("bug", "a bug"),
        ("exit", "it raised SystemExit"),
        ("cancel", "it raised CancelledError"),
    ],
)
async def test_failure_of_an_environment_ends_its_episode(reply: str, said: str) -> None:
    playing = episodes()
    started = await playing.reset(seed=1, task=None)
    with pytest.raises(UnplayableError, match=said):
        await playing.step(started.handle, reply)
    with pytest.raises(UnplayableError, match="is over"):
        await playing.step(started.handle, "again")
    assert Room.open_rooms == set()


async def test_task_that_cannot_be_played_leaves_no_environment() -> None:
    playing = episodes()
    with pytest.raises(UnplayableError, match="the task is broken"):
        await playing.reset(seed=1, task={"broken": True})
    assert (len(playing), Room.open_rooms) == (0, set())


async def test_idle_episode_ends() -> None:
    now = [0.0]
    playing = Episodes(Room, EpisodeLimits(idle_timeout_s=10), clock=lambda: now[0])
    started = await playing.reset(seed=1, task=None)
    now[0] = 9.0
    await playing.step(started.handle, "hello")
    now[0] = 18.0
    await playing.end_idle()
    assert len(playing) == 1
    now[0] = 20.0
    with pytest.raises(UnplayableError, match="no step for 10 seconds"):
        await playing.step(started.handle, "hello")
    assert Room.open_rooms == set()


async def test_slow_step_ends_its_episode_and_the_environment_closes_after_it() -> None:
    playing = episodes(step_timeout_s=0.05)
    started = await playing.reset(seed=1, task=None)
    with pytest.raises(UnplayableError, match=r"longer than 0\.05 seconds"):
        await playing.step(started.handle, "wait")
    assert len(playing) == 0
    Room.door.set()
    while Room.open_rooms:
        await asyncio.sleep(0.001)


async def test_second_step_at_once_is_refused_and_a_cancelled_one_ends_the_episode() -> None:
    playing = episodes()
    started = await playing.reset(seed=1, task=None)
    running = asyncio.create_task(playing.step(started.handle, "wait"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(UnplayableError, match="a step of the episode"):
        await playing.step(started.handle, "hello")
    with pytest.raises(UnplayableError, match="is running"):
        await playing.close(started.handle)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(UnplayableError, match="was cancelled"):
        await playing.step(started.handle, "hello")
    Room.door.set()
    while Room.open_rooms:
        await asyncio.sleep(0.001)


def test_limits_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="max_episodes"):
        EpisodeLimits(max_episodes=0)


async def test_step_that_is_repeated_with_its_turn_is_not_played_twice() -> None:
    playing = episodes()
    started = await playing.reset(seed=1, task=None)
    assert started.state["turn"] == 0
    first = await playing.step(started.handle, "hello", turn=0)
    assert first.state["turn"] == 1
    assert await playing.step(started.handle, "hello", turn=0) is first
    with pytest.raises(UnplayableError, match="is at turn 1, got a reply to turn 0"):
        await playing.step(started.handle, "another", turn=0)
    last = await playing.step(started.handle, "end", turn=1)
    assert last.state["terminated"]
    assert await playing.step(started.handle, "end", turn=1) is last  # though the episode is over
    with pytest.raises(UnplayableError, match="it ended with its last step"):
        await playing.step(started.handle, "end", turn=2)


async def test_results_of_ended_episodes_are_kept_for_a_few() -> None:
    playing = episodes(max_episodes=1)
    for _ in range(5):
        started = await playing.reset(seed=1, task=None)
        await playing.step(started.handle, "end", turn=0)
    assert len(playing._latest) == 2
