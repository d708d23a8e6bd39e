"""Worlds of other packages: pictures, names of actions, missions, and exact repetition."""

import random
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from minigrid.utils.baby_ai_bot import BabyAIBot

import envkit
from envkit.env import PolicyContext, Step
from envkit.errors import ConfigurationError
from envkit_gymnasium import GymnasiumEnv
from envkit_gymnasium.names import member_ids

pytestmark = pytest.mark.worlds


@dataclass(frozen=True, kw_only=True)
class World:
    """What a world must show."""

    env_id: str
    size: tuple[int, int]
    names: str
    """The first names of its actions; "" for a world without."""
    says: str = ""
    """In every text."""
    is_repeatable: bool = True
    """Whether recovery by replay is declared."""
    env_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


WORLDS = [
    World(
        env_id="MiniGrid-DoorKey-6x6-v0",
        size=(384, 384),
        names="left (0), right (1), forward (2), pickup (3)",
        says="mission: use the key",
    ),
    World(env_id="MiniGrid-Fetch-8x8-N3-v0", size=(512, 512), names="left (0)", says="mission: "),
    World(env_id="BabyAI-GoToObj-v0", size=(512, 512), names="left (0)", says="mission: go to"),
    World(env_id="BabyAI-BossLevel-v0", size=(704, 704), names="left (0)", says="mission: "),
    World(env_id="ALE/Pong-v5", size=(320, 420), names="noop (0), fire (1), right (2)"),
    World(env_id="ALE/MsPacman-v5", size=(320, 420), names="noop (0), up (1), right (2)"),
    World(
        env_id="CrafterReward-v1",
        size=(448, 448),
        names="noop (0), move_left (1), move_right (2)",
        is_repeatable=True,
    ),
    World(
        env_id="VizdoomBasic-v1", size=(320, 240), names="nothing (0), attack (1)", says="screen"
    ),
    World(
        env_id="MiniWorld-OneRoom-v0",
        size=(480, 360),
        names="turn_left (0), turn_right (1), move_forward (2)",
        is_repeatable=False,
    ),
    World(env_id="highway-fast-v0", size=(600, 150), names="lane_left (0), idle (1)"),
    World(env_id="parking-v0", size=(600, 300), names=""),
]
BY_ID = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.env_id)


def made(world: World) -> GymnasiumEnv:
    return GymnasiumEnv(env=world.env_id, env_kwargs=world.env_kwargs, max_turns=30)


def played(world: World, *, seed: int = 5, turns: int = 25) -> list[Step]:
    with closing(made(world)) as env:
        env.reset(seed=seed)
        policy = env.policies["random"]()
        steps: list[Step] = []
        for turn in range(turns):
            context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=seed)
            steps.append(env.step(policy(context)))
            if steps[-1].terminated or steps[-1].truncated:
                break
        return steps


@BY_ID
def test_world_shows_a_picture_the_names_of_its_actions_and_its_mission(world: World) -> None:
    with closing(made(world)) as env:
        shown = env.reset(seed=2)[0]
        assert [image.size for image in shown["images"]] == [world.size]
        assert len(shown["images"][0].pil().convert("RGB").getcolors(1 << 24) or ()) > 1
        assert world.says in shown["text"]
        prompt = env.system_prompt or ""
    assert "Play it by calling the tool act." in prompt
    assert (f"one of {world.names}" if world.names else "a list of 2 numbers") in prompt
    assert "0x" not in prompt


@BY_ID
def test_the_same_seed_and_actions_repeat_byte_for_byte(world: World) -> None:
    first, second = played(world), played(world)
    assert first == second
    assert len({step.observation["images"][0].sha256 for step in first}) > 1
    assert all(world.says.partition(" ")[0] in step.observation["text"] for step in first)
    with closing(made(world)) as env:
        assert env.capabilities.replay_safe is world.is_repeatable
        assert env.capabilities.deterministic is world.is_repeatable


@BY_ID
def test_world_repeats_in_another_process(world: World) -> None:
    if not world.is_repeatable:
        pytest.skip("it does not declare that it repeats")
    code = (
        "import runpy, sys\n"
        "sys.path[:0] = sys.argv[3:]\n"
        "t = runpy.run_path(sys.argv[1])\n"
        "world = next(one for one in t['WORLDS'] if one.env_id == sys.argv[2])\n"
        "print('digest', t['digest'](t['played'](world)), t['made'](world).system_prompt)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, __file__, world.env_id, *sys.path],
        capture_output=True, text=True, check=True, timeout=300,
    ).stdout  # fmt: skip
    expected = f"digest {digest(played(world))} {made(world).system_prompt}"
    assert expected in shown


def digest(steps: list[Step]) -> str:
    """Name the pictures and rewards of an episode."""
    parts = [(step.reward, *(one.sha256 for one in step.observation["images"])) for step in steps]
    return format(random.Random(repr(parts)).getrandbits(64), "x")


@BY_ID
def test_world_passes_the_checker(world: World) -> None:
    with closing(made(world)) as env:
        passed = set(envkit.check_env(env).passed)
    assert "gymnasium" in passed
    assert not world.is_repeatable or {"determinism", "replay"} <= passed


@pytest.mark.parametrize(
    "env_id", ["BabyAI-GoToObj-v0", "BabyAI-PickupLoc-v0", "BabyAI-OpenDoor-v0"]
)
@pytest.mark.parametrize("seed", range(3))
def test_babyais_bot_solves_its_missions(env_id: str, seed: int) -> None:
    """The package's own solver earns the reward, so actions, rewards and ends are the world's."""
    with closing(GymnasiumEnv(env=env_id, action_form="tags")) as env:
        env.reset(seed=seed)
        inner: Any = env._inner.unwrapped  # pyright: ignore[reportPrivateUsage]
        bot = BabyAIBot(inner)
        total, action = 0.0, None
        while True:
            action = bot.replan(action)
            step = env.step(f"<action>{inner.actions(action).name}</action>")
            total += step.reward
            if step.terminated or step.truncated:
                break
    assert step.terminated
    assert total > 0.5


def test_black_pictures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.raises(ConfigurationError, match="would draw black pictures"):
        GymnasiumEnv(env="highway-fast-v0")


def test_missions_differ_between_episodes() -> None:
    with closing(GymnasiumEnv(env="BabyAI-GoToObj-v0")) as env:
        assert len({env.reset(seed=seed)[0]["text"] for seed in range(12)}) > 3


def test_worlds_are_members_of_the_collection() -> None:
    listed = set(member_ids())
    wanted = {world.env_id for world in WORLDS if "/" not in world.env_id} - {"highway-fast-v0"}
    assert wanted <= listed
    assert not [name for name in listed if name.startswith(("Pong", "Breakout"))]
