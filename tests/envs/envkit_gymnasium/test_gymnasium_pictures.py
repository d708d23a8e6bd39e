"""What a world of pictures shows: which view, which names, missions, stacks and sizes."""

import enum
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envkit
from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.wrappers import HideFeedback, TextTwin
from envkit_gymnasium import GymnasiumEnv
from envkit_gymnasium.names import action_names_of
from envkit_gymnasium.sentences import describe_space

SCREEN = spaces.Box(0, 255, (20, 30, 3), np.uint8)


class Mission(spaces.Space[str]):
    """A space of strings whose own text holds an address, as MiniGrid's does."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.function = lambda: "go"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return f"MissionSpace({self.function!r})"


class Rooms(gymnasium.Env[Any, Any]):
    """Stands in for a world of a package: an enum of actions, a mission, and what it renders.

    Walk.

    ## Action Space

    | 0 | turn |

    ## Registered Configurations

    - `Rooms-v0`
    """

    class Actions(enum.IntEnum):
        turn = 0
        walk = 1
        jump = 2

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "human"]}  # type: ignore[misc]

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        space: spaces.Space[Any] | None = None,
        count: int = 2,
        modes: tuple[str, ...] = ("rgb_array",),
    ) -> None:
        self.metadata = {"render_modes": [*modes]}  # type: ignore[misc]  # pyright: ignore[reportIncompatibleVariableOverride, reportAttributeAccessIssue]
        self.render_mode, self.actions = render_mode, self.Actions
        self.action_space = spaces.Discrete(count)
        self.observation_space = space or spaces.Dict(
            {"grid": spaces.Box(0, 9, (7,), np.uint8), "mission": Mission()}
        )
        self.goal = "the red door"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.goal = f"door {int(self.np_random.integers(1000))}"
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._seen(), 0.25, False, False, {}

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return "a drawing"
        return np.full((20, 30, 3), 7, np.uint8)

    def _seen(self) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            return {"grid": np.zeros(7, np.uint8), "mission": self.goal}
        return self.observation_space.sample()


def rooms(**options: Any) -> GymnasiumEnv:
    inside = options.pop("inside", {})
    return GymnasiumEnv(env=Rooms, env_kwargs=inside, action_form="tags", **options)


@pytest.mark.parametrize(
    ("modes", "space", "pictures", "says"),
    [
        (("rgb_array",), None, 1, "mission: door"),
        (
            ("ansi", "rgb_array"),
            None,
            1,
            "mission: door",
        ),  # another package's text is a last resort
        (("rgb_array",), SCREEN, 1, ""),
        (("ansi",), spaces.Discrete(3), 0, "a drawing"),
        ((), spaces.Discrete(3), 0, "State: "),
    ],
)
def test_auto_prefers_pictures(
    modes: tuple[str, ...], space: Any, pictures: int, says: str
) -> None:
    shown = rooms(inside={"modes": modes, "space": space}).reset(seed=1)[0]
    assert len(shown["images"]) == pictures
    assert says in shown["text"]


def test_auto_shows_gymnasiums_own_drawings_as_text() -> None:
    env: Any = envkit.make("gymnasium/FrozenLake-v1")
    assert env.reset(seed=1)[0]["images"] == ()


def test_a_missing_renderer_is_an_error_with_the_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    env: Any = envkit.make("gymnasium/CartPole-v1")
    with pytest.raises(MissingDependencyError, match="pip install"):
        env.reset(seed=1)


def test_mission_is_told_on_every_turn_and_differs_by_episode() -> None:
    env = rooms()
    missions = {env.reset(seed=seed)[0]["text"] for seed in range(5)}
    assert len(missions) == 5
    assert all(mission.startswith("mission: door ") for mission in missions)
    last = env.reset(seed=9)[0]["text"]
    assert env.step("<action>walk</action>").observation["text"].startswith(last)


def test_prompt_does_not_depend_on_the_process() -> None:
    prompt = rooms(view="state").system_prompt or ""
    assert "0x" not in prompt
    assert "'mission': a Mission" in prompt
    assert describe_space(Mission()) == "a Mission"


def test_names_of_actions_replace_the_documentation_of_them() -> None:
    named = rooms().system_prompt or ""
    assert "An action is one of turn (0), walk (1)." in named
    assert "Action Space" not in named
    assert "Registered Configurations" not in named
    plain = rooms(inside={"count": 5}).system_prompt or ""  # the enum does not fit
    assert "an integer from 0 to 4" in plain
    assert "## Action Space" in plain


@pytest.mark.parametrize(
    ("env", "names"),
    [
        (SimpleNamespace(get_action_meanings=lambda: ["NOOP", "FIRE"]), ["noop", "fire"]),
        (SimpleNamespace(action_type=SimpleNamespace(actions={0: "A", 1: "B"})), ["a", "b"]),
        (SimpleNamespace(action_names=["noop", "sleep"]), ["noop", "sleep"]),
        (SimpleNamespace(action_names=["same", "same"]), []),
        (
            SimpleNamespace(
                button_map=[[0, 0], [1, 0], [1, 1]],
                game=SimpleNamespace(
                    get_available_buttons=lambda: [
                        SimpleNamespace(name="ATTACK"), SimpleNamespace(name="TURN"),
                    ]
                ),
            ),
            ["nothing", "attack", "attack+turn"],
        ),
        (SimpleNamespace(), []),
    ],
)  # fmt: skip
def test_action_names_come_from_the_package(env: Any, names: list[str]) -> None:
    assert [*action_names_of(env)] == names


def test_stacked_frames_are_several_pictures() -> None:
    for space in (
        spaces.Box(0, 255, (4, 20, 30), np.uint8),
        spaces.Box(0, 255, (4, 20, 30, 3), np.uint8),
    ):
        env = rooms(view="state", inside={"space": space})
        shown = env.reset(seed=1)[0]
        assert len(shown["images"]) == 4
        assert shown["text"] == ""
        assert "4 pictures, the latest last" in (env.system_prompt or "")
    assert "list of shape" in describe_space(spaces.Box(0, 255, (40, 20, 30), np.uint8))


@pytest.mark.parametrize(
    ("sides", "size"),
    [({}, (450, 300)), ({"min_side": 1}, (30, 20)), ({"min_side": 90, "max_side": 60}, (60, 40))],
)
def test_small_screens_are_enlarged_and_large_ones_scaled_down(
    sides: dict[str, int], size: tuple[int, int]
) -> None:
    assert rooms(**sides).reset(seed=1)[0]["images"][0].size == size


def test_text_twin_and_feedback_work_on_worlds_of_pictures() -> None:
    env = TextTwin(HideFeedback(rooms()), place="instead")
    shown = env.reset(seed=1)[0]
    assert shown["images"] == ()
    assert "grid: [0, 0, 0, 0, 0, 0, 0]" in shown["text"]
    assert "Reward" not in env.step("<action>walk</action>")[0]["text"]
    bad = HideFeedback(rooms(), keeps_errors=True)
    bad.reset(seed=1)
    assert "Nothing was played" in bad.step("nothing")[0]["text"]
    with pytest.raises(ConfigurationError, match="has no text twin"):
        TextTwin(rooms(inside={"space": SCREEN}))


@pytest.mark.parametrize(
    ("env_id", "package"),
    [
        ("ALE/Nosuch-v5", "ale-py"),
        ("MiniGrid-Nosuch-v0", "minigrid"),
        ("CrafterReward-v1", "crafter"),
        ("VizdoomBasic-v1", "vizdoom"),
        ("MiniWorld-OneRoom-v0", "miniworld"),
        ("highway-fast-v0", "highway-env"),
    ],
)
def test_an_id_of_a_missing_package_names_it(
    env_id: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ale_py", "minigrid", "crafter", "vizdoom", "miniworld", "highway_env"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "vizdoom.gymnasium_wrapper", raising=False)
    monkeypatch.delitem(sys.modules, "envkit_gymnasium.crafter", raising=False)
    with pytest.raises(MissingDependencyError, match=f"pip install {package}"):
        envkit.make("gymnasium-v0", env=env_id)
    with pytest.raises(MissingDependencyError, match=f"pip install {package}"):
        envkit.make(f"gymnasium/{env_id}")


def test_a_package_that_does_not_work_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoSuchDisplayException(Exception):  # pyglet's name
        pass

    def broken(name: str) -> Any:
        raise NoSuchDisplayException(name)

    monkeypatch.setattr("envkit_gymnasium.inner.import_module", broken)
    with pytest.raises(ConfigurationError, match="PYGLET_HEADLESS=true"):
        envkit.make("gymnasium-v0", env="MiniWorld-OneRoom-v0")


def test_an_id_with_its_own_namespace_is_an_argument() -> None:
    gymnasium.register("Toys/Rooms-v0", entry_point=f"{__name__}:Rooms")
    try:
        with pytest.raises(ConfigurationError, match="env='Toys/Rooms-v0'"):
            envkit.make("gymnasium/Toys/Rooms-v0")
    finally:
        del gymnasium.registry["Toys/Rooms-v0"]
