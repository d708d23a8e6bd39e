"""Gymnasium's real environments, played by replies."""

import json
import random
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from fakes.matrix import share
from fakes.oracles import steps_of
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

import envkit
from envkit import errors
from envkit.env import Env, PolicyContext
from envkit.registration import members
from envkit.rollout import EpisodeRequest
from envkit_gymnasium import GymnasiumEnv
from envkit_gymnasium.names import ACTION_NAMES, STATE_NAMES, class_key

PLAYED = [
    "Acrobot-v1",
    "Blackjack-v1",
    "CartPole-v1",
    "CliffWalking-v1",
    "FrozenLake-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Taxi-v4",
]
SOLVED: list[tuple[str, dict[str, Any]]] = [
    ("FrozenLake-v1", {"env_kwargs": {"is_slippery": False}}),
    ("FrozenLake8x8-v1", {"env_kwargs": {"is_slippery": False}}),
    ("CliffWalking-v1", {"termination_reward": 100.0}),
    ("Taxi-v4", {}),
]


def made(name: str, **options: Any) -> GymnasiumEnv:
    env: Any = envkit.make(f"gymnasium/{name}", **options)
    assert isinstance(env, GymnasiumEnv)
    return env


def call(action: object) -> str:
    return f"<tool_call>{json.dumps({'name': 'act', 'arguments': {'action': action}})}</tool_call>"


def play_oracle(env: Env, seed: int) -> tuple[float, bool]:
    steps = steps_of(env, seed=seed)
    return sum(step.reward for step in steps), steps[-1].terminated


class Corridor(gymnasium.Env[Any, Any]):
    """Walk right to the end. Counts what happens to it."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012  # as Gymnasium's own

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        action_space: spaces.Space[Any] | None = None,
        observation_space: spaces.Space[Any] | None = None,
        observation: Any = None,
        limit: int = 5,
        breaks: bool = False,
    ) -> None:
        self.render_mode, self.limit, self.breaks = render_mode, limit, breaks
        self.action_space = action_space or spaces.Discrete(3, start=-1)
        self.observation_space = observation_space or spaces.Discrete(100)
        self.observation = observation
        self.played: list[Any] = []
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.played = []
        return self._state(), {"options": options, "odd": object(), "at": np.int64(3)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.breaks:
            raise ZeroDivisionError("a bug of its own")
        assert self.action_space.contains(action)
        self.played.append(action)
        length = len(self.played)
        return self._state(), 0.5, length >= self.limit, length == 4, {}

    def render(self) -> Any:
        return f"\x1b[1mat\x1b[0m {len(self.played)}"

    def close(self) -> None:
        self.closed += 1

    def _state(self) -> Any:
        return len(self.played) if self.observation is None else self.observation


def corridor(**options: Any) -> tuple[GymnasiumEnv, Corridor]:
    inside = options.pop("inside", {})
    env = GymnasiumEnv(env=Corridor, env_kwargs=inside, **options)
    env.reset(seed=0)
    return env, cast(Corridor, env._inner)


@pytest.mark.parametrize("name", share(PLAYED, of=3))
def test_gymnasium_environment_passes_the_checker(name: str) -> None:
    env = made(name)
    report = envkit.check_env(env)

    assert {"gymnasium", "determinism", "independence", "replay", "tools"} <= set(report.passed)


@pytest.mark.parametrize(("name", "options"), share(SOLVED, of=2))
def test_gymnasium_oracle_solves_the_toys_and_passes_the_checker(
    name: str, options: dict[str, Any]
) -> None:
    env = made(name, **options)
    assert "oracle" in envkit.check_env(env).passed
    totals = [play_oracle(env, seed) for seed in range(20)]

    assert all(ended and total > 0 for total, ended in totals)
    if name == "CliffWalking-v1":
        assert {total for total, _ in totals} == {100.0 - 13.0}


def test_gymnasium_oracle_is_refused_where_chance_decides_or_nothing_is_earned() -> None:
    for name in ("FrozenLake-v1", "CliffWalking-v1", "CartPole-v1"):
        with pytest.raises(errors.ConfigurationError, match="no oracle policy"):
            made(name).oracle()


@pytest.mark.parametrize("name", PLAYED)
def test_gymnasium_random_play_is_that_of_the_inner_environment(name: str) -> None:
    """The same actions give the same rewards and ends as Gymnasium's own environment."""
    env, plain = made(name), gymnasium.make(name)
    for seed in range(3):
        env.reset(options={"task": {"seed": seed}})
        plain.reset(seed=seed)
        plain.action_space.seed(seed)
        for _ in range(30):
            action: Any = plain.action_space.sample()
            _, reward, terminated, truncated, _ = plain.step(action)
            step = env.step(env._reader.write(action))
            assert step.info["parse_error"] is None
            assert step.reward == pytest.approx(float(reward), abs=1e-9)
            assert (step.terminated, step.truncated) == (terminated, truncated)
            if terminated or truncated:
                break
    plain.close()


@pytest.mark.parametrize("form", ["tool", "tags"])
@pytest.mark.parametrize("name", ["Blackjack-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_gymnasium_random_policy_samples_actions_by_the_seed(name: str, form: str) -> None:
    env = made(name, action_form=form)
    policy = env.policies["random"]()
    replies: list[str] = []
    for seed in range(12):
        env.reset(seed=seed)
        context = PolicyContext(env=env, task=env.task, turn=0, messages=(), seed=seed)
        assert policy(context) == policy(context)
        replies.append(policy(context))
        assert env.step(replies[-1]).info.get("parse_error") is None
    assert len(set(replies)) > 1


def test_gymnasium_members_are_the_newest_version_of_each_registered_name() -> None:
    found = members("gymnasium")

    assert {f"gymnasium/{name}" for name in PLAYED} <= set(found)
    assert {name for name in found if "CartPole" in name} == {"gymnasium/CartPole-v1"}
    assert found["gymnasium/CartPole-v1"].kwargs == {"env": "CartPole-v1"}
    assert not [name for name in found if name.count("/") > 1 or "GymV21" in name]
    assert made("FrozenLake8x8-v1").max_turns == 200
    assert EpisodeRequest(env_id="gymnasium/Taxi-v4", seed=1).env_id == "gymnasium/Taxi-v4"


def test_gymnasium_env_is_made_by_name_by_function_and_with_arguments() -> None:
    by_name: Any = envkit.make(
        "gymnasium-v0", env="FrozenLake-v1", env_kwargs={"desc": ["SG"], "is_slippery": False}
    )
    by_name.reset(seed=0)
    step = by_name.step(call("right"))

    assert (step.reward, step.terminated) == (1.0, True)
    assert corridor()[1].played == []


def test_gymnasium_known_names_fit_the_real_spaces() -> None:
    keys: set[str] = set()
    for name in PLAYED:
        env = gymnasium.make(name)
        key = class_key(env.unwrapped)
        assert key is not None
        keys.add(key)
        if key in ACTION_NAMES:
            assert cast(spaces.Discrete, env.action_space).n == len(ACTION_NAMES[key])
        if key in STATE_NAMES:
            space: Any = env.observation_space
            assert (
                len(STATE_NAMES[key]) == len(space)
                if isinstance(space, spaces.Tuple)
                else space.shape == (len(STATE_NAMES[key]),)
            )
        env.close()

    assert set(STATE_NAMES) <= keys
    assert set(ACTION_NAMES) - keys == {"lunar_lander:LunarLander"}


def test_gymnasium_prompt_says_rules_actions_and_state() -> None:
    env = made("CartPole-v1", view="state")
    prompt = env.system_prompt or ""

    assert "An action is one of left (0), right (1). Play it by calling the tool act." in prompt
    assert "cart position, a number from -4.8 to 4.8" in prompt
    assert "The pendulum is placed upright" in prompt
    assert not {"Version History", "## Arguments", "gym.make", "<img"} & set(prompt.split("\n"))
    assert "gym.make" not in prompt
    assert made("CartPole-v1", instructions="Balance.").system_prompt != prompt


def test_gymnasium_rules_name_settings_that_differ_from_the_documentation() -> None:
    settings = {"is_slippery": False, "map_name": "8x8", "desc": None}
    prompt = made("FrozenLake-v1", env_kwargs=settings).system_prompt or ""
    assert "Settings of this game: is_slippery = False, map_name = '8x8'." in prompt
    assert "Settings" not in (made("FrozenLake-v1").system_prompt or "")


def test_gymnasium_drawing_keeps_its_colours_as_marks() -> None:
    env = made("FrozenLake-v1", env_kwargs={"is_slippery": False})
    text = env.reset(seed=0)[0]["text"]
    assert text.startswith("SFFF\nFHFH\nFFFH\nHFFG\n")
    assert "- row 1, column 1: 'S', on red" in text

    text = env.step(call("down"))[0]["text"]
    assert "HFFG\n  (Down)\n" in text
    assert "- row 2, column 1: 'F', on red" in text
    assert "\x1b" not in text
    assert "Reward: 0, 0 so far." in text


def test_gymnasium_bad_actions_are_observations_and_play_nothing() -> None:
    env, inner = corridor(action_names=["back", "stay", "on"], max_turns=50)
    bad = [
        ("", "no call of the tool act"),
        ("<tool_call>{", "cannot be read"),
        (call("forward"), "one of back, stay, on, got 'forward'"),
        (call(7), "an integer from -1 to 1, got 7"),
        (call(0.5), "an integer from -1 to 1, got 0.5"),
        (call(None), "a number, got None"),
        (call(True), "a number, got True"),
        (call([1]), "a number, got [1]"),
        (call(1) + call(1), "at most 1 actions"),
        (call(1).replace('"act"', '"jump"'), "no tool 'jump'"),
        (call(1).replace('"action"', '"go"'), "one argument, 'action', got ['go']"),
    ]
    for reply, message in bad:
        step = env.step(reply)
        assert message in (step.info["parse_error"] or ""), reply
        assert message in step.observation["text"]
        assert (step.reward, step.terminated, step.info["steps"]) == (0.0, False, 0)
    assert inner.played == []
    for reply in (call("ON"), call(" stay "), call(-1), call("-1")):
        assert env.step(reply).info["parse_error"] is None
    assert inner.played == [1, 0, -1, -1]


def test_gymnasium_truncation_of_the_inner_environment_is_not_termination() -> None:
    env, _ = corridor()
    steps = [env.step(call(0)) for _ in range(4)]

    assert [(step.terminated, step.truncated) for step in steps[-2:]] == [
        (False, False),
        (False, True),
    ]
    assert "reached its step limit" in steps[-1].observation["text"]
    assert steps[-1].info["return"] == 2.0
    with pytest.raises(envkit.errors.EpisodeStateError):
        env.step(call(0))


def test_gymnasium_last_turn_truncates_and_the_end_pays_the_bonus() -> None:
    env, _ = corridor(max_turns=2)
    assert [env.step(call(0)).truncated for _ in range(2)] == [False, True]

    env, _ = corridor(inside={"limit": 1}, termination_reward=3.0)
    step = env.step(call(0))
    assert (step.reward, step.terminated, step.truncated) == (3.5, True, False)
    assert step.info["reward_terms"] == {"env": 3.5}


@pytest.mark.parametrize("reply", ["", "<tool_call>", call("sideways")])
def test_gymnasium_reply_that_plays_nothing_never_succeeds(reply: str) -> None:
    """Where steps cost reward, doing nothing reaches a threshold below 0."""
    for name in ("MountainCar-v0", "Acrobot-v1"):
        env = made(name)
        assert env.reward_threshold is not None
        assert env.reward_threshold < 0
        env.reset(seed=3)
        step = env.step(reply)
        while not (step.terminated or step.truncated):
            assert step.info["is_success"] is False
            step = env.step(reply)
        assert step.info["return"] == 0
        assert step.info["is_success"] is False


@pytest.mark.parametrize("misses", [0, 1])
@pytest.mark.parametrize("limit", [None, 3, 4])
def test_gymnasium_threshold_below_0_needs_a_whole_episode(limit: int | None, misses: int) -> None:
    class Costly(gymnasium.Env[Any, Any]):
        spec = EnvSpec(id="Costly-v0")
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_: Any) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return 0, -float(action), False, False, {}

    def build(**_: Any) -> Any:
        inner: Any = Costly()
        return inner if limit is None else gymnasium.wrappers.TimeLimit(inner, limit)

    for action, is_cheap in ((0, True), (1, False)):
        env = GymnasiumEnv(env=build, max_turns=3)
        env.default_threshold = -2.0
        assert [env.reset(seed=0).info["is_success"] for _ in range(2)] == [False, False]
        replies = [""] * misses + [call(action)] * (3 - misses)
        infos = [env.step(reply).info for reply in replies]
        is_whole = not misses and limit != 4  # a limit of 4 leaves a step that was not played
        assert infos[0]["is_success"] is False
        assert infos[-1]["is_success"] is (is_whole and is_cheap)
        assert env.reset(seed=0).info["is_success"] is False


def test_gymnasium_threshold_above_0_is_left_to_the_return() -> None:
    env = made("CartPole-v1")
    env.reset(seed=0)
    assert "is_success" not in env.step(call("left")).info


def test_gymnasium_several_actions_and_frame_skip_sum_their_rewards() -> None:
    env, inner = corridor(actions_per_turn=3, frame_skip=2, inside={"limit": 3})
    step = env.step(call(1) + call(-1) + call(0))

    assert inner.played == [1, 1, -1]
    assert (step.reward, step.info["steps"], step.terminated) == (1.5, 3, True)
    assert "Up to 3 actions in one reply are played in order." in (env.system_prompt or "")


def test_gymnasium_tags_are_read_after_the_thoughts() -> None:
    env, inner = corridor(action_form="tags", action_names=["back", "stay", "on"])
    assert env.tools == ()
    env.step("<think><action>back</action></think> I go <action> on </action>.")
    env.step("<action>0</action>")
    error = env.step("<action>1").info["parse_error"]

    assert inner.played == [1, 0]
    assert error == "there is no action between <action> and </action>"


def test_gymnasium_inner_failure_is_a_fault_and_bad_tasks_are_refused() -> None:
    env, _ = corridor(inside={"breaks": True})
    with pytest.raises(errors.EnvFault, match="a bug of its own") as caught:
        env.step(call(0))
    assert caught.value.kind is errors.FaultKind.CRASHED
    for task in ({}, {"seed": -1}, {"seed": True}, {"seed": "1"}, {"seed": 1, "options": 3}):
        with pytest.raises(errors.DatasetError):
            env.reset(options={"task": task})


def test_gymnasium_info_is_json_and_options_reach_the_inner_environment() -> None:
    env, inner = corridor()
    info = env.reset(options={"task": {"seed": 1, "options": {"level": 2}}})[1]

    assert info["env_info"] == {
        "options": {"level": 2},
        "at": 3,
    }  # values that are not valid JSON are omitted
    json.dumps(info)
    env.close()
    env.close()
    assert inner.closed == 1


def test_gymnasium_promises_only_what_is_known() -> None:
    assert made("Taxi-v4").capabilities.replay_safe
    assert not corridor()[0].capabilities.deterministic
    assert corridor(is_repeatable=True)[0].capabilities.deterministic
    assert not made("Taxi-v4", is_repeatable=False).capabilities.replay_safe


def test_gymnasium_wrong_arguments_are_refused_with_a_sentence() -> None:
    wrong: list[tuple[Mapping[str, Any], str]] = [
        ({"env": "FrozenLace-v1"}, "FrozenLace"),
        ({"env": "CartPole-v1", "env_kwargs": {"wheels": 3}}, "wheels"),
        ({"env": "CartPole-v1", "view": "ansi"}, "does not render 'ansi'"),
        ({"view": "smell"}, "view must be one of"),
        ({"env_kwargs": {"render_mode": "ansi"}}, "pass view= instead"),
        ({"action_names": ["a", "b"]}, "takes 4 names, got 2"),
        ({"action_names": ["a", "b", "c", "A"]}, "must differ"),
        ({"env": "Pendulum-v1", "action_names": ["a"]}, "takes none, got 1"),
        ({"action_form": "song"}, "action_form"),
        ({"call_format": "song"}, "tool call format"),
        ({"frame_skip": 0}, "at least 1"),
        ({"env": dict}, "must make a gymnasium.Env, got dict"),
        (
            {"env": Corridor, "env_kwargs": {"action_space": spaces.Graph(spaces.Box(0, 1), None)}},
            "got Graph",
        ),
    ]
    for options, message in wrong:
        with pytest.raises(errors.ConfigurationError, match=message):
            GymnasiumEnv(**options)


def test_gymnasium_image_is_shown_or_its_package_is_named() -> None:
    if find_spec("pygame") is None:
        with pytest.raises(errors.MissingDependencyError, match="pygame"):
            made("CartPole-v1", view="rgb_array").reset(seed=0)
        return
    env = made("CartPole-v1", view="rgb_array", with_state=True)
    observation, _ = env.reset(seed=0)
    assert observation["images"][0].size == (600, 400)
    assert "cart position" in observation["text"]
    assert "determinism" in envkit.check_env(env).passed


def test_gymnasium_image_observations_are_shown_as_images() -> None:
    pixels: NDArray[np.uint8] = np.arange(16 * 24 * 3, dtype=np.uint32).astype(np.uint8)
    pixels = pixels.reshape(16, 24, 3)
    space = spaces.Dict({"eye": spaces.Box(0, 255, (16, 24, 3), np.uint8), "n": spaces.Discrete(4)})
    env, _ = corridor(
        view="state",
        inside={"observation_space": space, "observation": {"eye": pixels, "n": np.int64(2)}},
    )
    observation, _ = env.reset(seed=0)

    assert observation["text"] == "eye: [image 1]\nn: 2"
    shown = observation["images"][0].array()
    assert shown.shape == (304, 456, 3)  # 19 times as large, to about 448
    assert np.array_equal(shown[::19, ::19], pixels)
    assert "'eye': a picture" in (env.system_prompt or "")
    grey, _ = corridor(
        view="state",
        inside={
            "observation_space": spaces.Box(0, 255, (9, 8, 1), np.uint8),
            "observation": pixels[:9, :8, :1],
        },
    )
    assert grey.reset(seed=0)[0]["images"][0].mode == "L"


def test_gymnasium_random_replies_never_raise() -> None:
    env, inner = corridor(max_turns=10**6, inside={"limit": 10**9}, actions_per_turn=2)
    rng = random.Random(0)
    pieces = [
        "<tool_call>",
        "</tool_call>",
        '{"name": "act", "arguments": ',
        '{"action": ',
        "1",
        "}}",
        "[",
        "NaN",
        "1e999",
        '"on"',
        "null",
        "\x00",
        "</think>",
        "é",
        "-",
        "9" * 400,
    ]
    for _ in range(3000):
        if not env._running:
            env.reset(seed=0)
        step = env.step("".join(rng.choice(pieces) for _ in range(rng.randrange(9))))
        json.dumps(step.info, allow_nan=False)
    assert inner.played == [] or set(map(int, inner.played)) <= {-1, 0, 1}


def test_gymnasium_reward_that_is_not_a_number_is_refused() -> None:
    class Broken(Corridor):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return 0, float("nan"), False, False, {}

    env = GymnasiumEnv(env=Broken)
    env.reset(seed=0)
    with pytest.raises(errors.ContractError, match="finite"):
        env.step(call(0))
