"""Games of PettingZoo and TextArena, played with fakes as strict as the real ones."""

import random
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envkit.env import PolicyContext
from envkit.errors import (
    ConfigurationError,
    DatasetError,
    EnvFault,
    MissingDependencyError,
    UnknownNameError,
)
from envkit_gymnasium.arena import TextArenaEnv
from envkit_gymnasium.zoo import PettingZooEnv


class Race:
    """A game of two agents with PettingZoo's interface: take 1, 2 or 3 of the matches.

    Who takes the last one wins; each match that is taken is worth 0.1 to the other player, as a
    reward during the game.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "is_parallelizable": False}
    possible_agents: tuple[str, ...] = ("one", "two")

    def __init__(self, *, matches: int = 7, render_mode: str | None = None) -> None:
        self.render_mode, self._matches = render_mode, matches
        self.agents: list[str] = []
        self.closed = 0

    def action_space(self, agent: str) -> spaces.Discrete[Any]:
        return spaces.Discrete(4)

    def observation_space(self, agent: str) -> spaces.Dict:
        assert agent in self.possible_agents
        return spaces.Dict(
            {"observation": spaces.Discrete(100), "action_mask": spaces.MultiBinary(4)}
        )

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents: list[str] = [*self.possible_agents]
        self.left, self.agent_selection = self._matches, "one"
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.ended = False

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        mask = np.array([0, *(number <= self.left for number in (1, 2, 3))], np.int8)
        state = {"observation": self.left, "action_mask": mask}
        return state, self._cumulative_rewards[self.agent_selection], self.ended, False, {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        other = self.possible_agents[1 - self.possible_agents.index(agent)]
        if self.ended:
            assert action is None, "when an agent is dead, the only valid action is None"
            self.agents.remove(agent)
            self.agent_selection = other
            return
        assert action in range(1, min(3, self.left) + 1), "illegal action"
        self.left -= action
        self._cumulative_rewards[agent] = 0.0
        self._cumulative_rewards[other] += 0.1 * action
        if not self.left:
            self.ended = True
            self._cumulative_rewards[agent] += 1.0
            self._cumulative_rewards[other] -= 1.0
        self.agent_selection = other

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return np.full((20, 30, 3), self.left, np.uint8)

    def close(self) -> None:
        self.closed += 1


def made(**options: Any) -> PettingZooEnv:
    return PettingZooEnv(env=Race, action_form="tags", **options)


def tagged(action: object) -> str:
    return f"<action>{action}</action>"


def rewards(steps: list[Any]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for step in steps:
        for role, told in step.info["agents"].items():
            totals[role] = totals.get(role, 0.0) + told["reward"]
        for role, reward in step.info["final_rewards"].items():
            totals[role] = totals.get(role, 0.0) + reward
    return totals


def test_roles_take_turns_and_get_their_cumulative_rewards() -> None:
    env = made()
    start = env.reset(seed=0).observation
    assert "Your legal actions: 1, 2, 3." in start["text"]
    assert [image.size for image in start["images"]] == [(450, 300)]
    steps = [env.step(tagged(number)) for number in (3, 3, 1)]
    assert "one played 3." in steps[0].observation["text"]
    assert "Your legal actions: 1." in steps[1].observation["text"]
    assert steps[-1].terminated
    assert rewards(steps) == pytest.approx({"one": 1.3, "two": -0.6})
    assert "Your reward: 1.3." in steps[-1].observation["text"]


def test_win_before_the_other_role_speaks_is_paid_at_the_end() -> None:
    env = made(env_kwargs={"matches": 2})
    env.reset(seed=0)
    step = env.step(tagged(2))
    assert step.terminated
    assert rewards([step]) == pytest.approx({"one": 1.0, "two": -0.8})


def test_truncated_game_pays_what_is_pending() -> None:
    env = made(max_turns=2)
    env.reset(seed=0)
    steps = [env.step(tagged(1)), env.step(tagged(2))]
    assert steps[-1].truncated
    assert rewards(steps) == pytest.approx({"one": 0.2, "two": 0.1})


@pytest.mark.parametrize("bad", ["I take one.", tagged(0), tagged("all"), tagged("9" * 500), ""])
def test_bad_replies_are_told_and_then_replaced(bad: str) -> None:
    env = made(retries=1)
    env.reset(seed=0)
    step = env.step(bad)
    assert env.addressed == ("one",)
    assert "Nothing was played: " in step.observation["text"]
    assert step.info["agents"]["one"]["info"]["parse_error"]
    env.step(bad)
    assert env.addressed == ("two",)
    step = env.step(tagged(1))
    assert "was drawn instead" in step.observation["text"]
    assert step.info["agents"]["one"]["info"]["parse_error"]
    assert step.info["agents"]["one"]["info"]["action"] in ("1", "2", "3")


def test_a_legal_reply_forgives_earlier_ones() -> None:
    env = made(retries=1)
    env.reset(seed=0)
    for reply in ("?", tagged(1), tagged(1), "?"):
        step = env.step(reply)
    assert env.addressed == ("one",)
    assert "Nothing was played" in step.observation["text"]


def test_role_that_left_plays_at_random() -> None:
    env = made()
    env.reset(seed=0)
    env.step('{"one": null}')
    assert env.addressed == ("two",)
    steps = [env.step(tagged(1))]
    while env.addressed:
        assert env.addressed == ("two",)
        steps.append(env.step(tagged(1)))
    assert set(rewards(steps)) == {"one", "two"}


@pytest.mark.parametrize("role", ["one", "two"])
def test_opponent_leaves_one_role_and_repeats_with_the_seed(role: str) -> None:
    env = made(opponent="random", role=role)
    assert env.roles == (role,)

    def texts(seed: int) -> list[str]:
        shown = [env.reset(seed=seed).observation["text"]]
        while env.addressed:
            shown.append(env.step(tagged(1)).observation["text"])
        return shown

    assert texts(3) == texts(3)
    assert len({repr(texts(seed)) for seed in range(8)}) > 1


def test_random_policy_plays_legal_actions_in_both_forms() -> None:
    for form in ("tool", "tags"):
        env = PettingZooEnv(env=Race, action_form=form)
        env.reset(seed=1)
        policy = env.policies["random"]()
        while env.addressed:
            context = PolicyContext(env=env, task=env.task, turn=0, messages=(), seed=1)
            step = env.step(policy(context))
            told = [one["info"] for one in step.info["agents"].values()]
            assert not [info for info in told if info.get("parse_error")]


def test_game_closes_once() -> None:
    env = made()
    env.close()
    env.close()
    assert env._inner.closed == 1  # pyright: ignore[reportPrivateUsage]


class Simultaneous(Race):
    metadata: Mapping[str, Any] = {**Race.metadata, "is_parallelizable": True}


def test_moves_of_a_simultaneous_game_stay_secret() -> None:
    env = PettingZooEnv(env=Simultaneous, action_form="tags")
    env.reset(seed=0)
    assert "played" not in env.step(tagged(2)).observation["text"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"env": "chess_v5"}, "Did you mean 'chess_v6'"),
        ({"env": "hanabi_v5"}, "'hanabi_v5' cannot be played: its picture shows all hands"),
        ({"env": "json:loads"}, "cannot be made with"),
        ({"env": "json:missing"}, "has no game 'missing'"),
        ({"env": "no_such_module:game"}, "there is no module 'no_such_module'"),
        ({"env": dict}, "must make a PettingZoo AECEnv"),
        ({"env": Race, "env_kwargs": {"render_mode": "human"}}, "pass view= instead"),
        ({"env": Race, "view": "ansi"}, "does not render 'ansi'"),
        ({"env": Race, "opponent": "minimax"}, "opponent must be one of 'random'"),
        ({"env": Race, "opponent": "random", "role": "three"}, "role must be one of 'one', 'two'"),
        ({"env": Race, "role": "one"}, "needs opponent='random'"),
        ({"env": Race, "retries": -1}, "retries must be at least 0"),
    ],
)
def test_wrong_argument_of_a_game_is_named(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        PettingZooEnv(**options)


def test_missing_packages_have_a_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pettingzoo\[classic\]'"):
        PettingZooEnv()
    with pytest.raises(MissingDependencyError, match="pip install textarena"):
        TextArenaEnv()


def test_missing_package_of_another_family_has_its_own_pip_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pettingzoo\[atari\]'"):
        PettingZooEnv(env="pettingzoo.atari:pong_v3")


def test_missing_package_of_a_function_is_named() -> None:
    def make() -> Any:
        raise ModuleNotFoundError("no dice", name="dice")

    with pytest.raises(MissingDependencyError, match=r"package dice: pip install dice$"):
        PettingZooEnv(env=make)


class Undrawn(Race):
    def render(self) -> Any:
        return None


class Stuck(Race):
    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        state, *rest = super().last()
        return {**state, "action_mask": np.zeros(4, np.int8)}, *rest  # pyright: ignore[reportReturnType]  # the rest has the right types


@pytest.mark.parametrize(("game", "rule"), [(Undrawn, "render"), (Stuck, "no legal action")])
def test_game_without_an_image_or_a_legal_action_is_a_fault(game: type, rule: str) -> None:
    env = PettingZooEnv(env=game)
    with pytest.raises(EnvFault, match=rule):
        env.reset(seed=0)


@pytest.mark.parametrize("seed", [None, True, -1, "7"])
def test_task_without_a_seed_is_refused(seed: Any) -> None:
    with pytest.raises(DatasetError, match="integer 'seed'"):
        made().reset(options={"task": {"seed": seed}})


class TwoPlayerState:
    def __init__(self, players: int) -> None:
        assert players == 2, "The number of players has to be 2"
        self.current_player_id = 0
        self.role_mapping = {0: "Player 0", 1: "Player 1", -1: "GAME"}
        self.observations: dict[int, list[tuple[int, str, Any]]] = {0: [], 1: []}
        self.rewards: dict[int, float] | None = None


class Guess:
    """A game of two with TextArena's interface: say the number that the process's chance drew."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = TwoPlayerState(num_players)
        self._secret = random.randint(1, 5)
        self._errors = 0
        for number in range(2):
            self._tell(number, -1, f"You are Player {number}. Guess from [1] to [5].")

    def get_observation(self) -> tuple[int, list[tuple[int, str, Any]]]:
        number = self.state.current_player_id
        messages, self.state.observations[number] = self.state.observations[number], []
        return number, messages

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        number = self.state.current_player_id
        for reader in range(2):
            self._tell(reader, number, action)
        if action == "[crash]":
            raise ValueError("a bug")
        if action == "[stop]":
            return True, {}
        if not action.strip("[]").isdigit():
            self._errors += 1
            if self._errors > 1:
                self.state.rewards = {number: -1, 1 - number: 1}
            self._tell(number, -1, "Invalid move.")
            return self._errors > 1, {}
        self._errors = 0
        if int(action.strip("[]")) == self._secret:
            self.state.rewards = {number: 1, 1 - number: -1}
            return True, {}
        self.state.current_player_id = 1 - number
        return False, {}

    def close(self) -> tuple[Any, Any]:
        return self.state.rewards, {number: {"reason": "over"} for number in range(2)}

    def _tell(self, reader: int, who: int, text: str) -> None:
        self.state.observations[reader].append((who, text, None))


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> None:
    made_of = {"Guess-v0": Guess, "Crowd-v0": SimpleNamespace}

    def make(name: str, **_: Any) -> Any:
        return made_of[name]()

    registration = ModuleType("textarena.envs.registration")
    registration.__dict__["ENV_REGISTRY"] = made_of
    for name in ("textarena", "textarena.envs"):
        module = ModuleType(name)
        module.__dict__["make"] = make
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "textarena.envs.registration", registration)


@pytest.mark.usefixtures("arena")
def test_text_game_tells_each_role_what_is_new_and_rewards_at_the_end() -> None:
    env = TextArenaEnv(env="Guess-v0")
    assert env.roles == ("player_0", "player_1")
    assert "[GAME] You are Player 0." in env.reset(seed=5).observation["text"]
    secret = env._game._secret  # pyright: ignore[reportPrivateUsage]
    wrong = secret % 5 + 1
    shown = env.step(f"<think>{secret}</think>[{wrong}]").observation["text"]
    assert f"[Player 0] [{wrong}]" in shown
    assert "You are Player 1." in shown
    assert "think" not in shown
    step = env.step(f"[{secret}]")
    assert step.terminated
    assert rewards([step]) == {"player_0": -1.0, "player_1": 1.0}
    assert step.info["agents"]["player_1"]["info"]["game"] == {"reason": "over"}


@pytest.mark.usefixtures("arena")
def test_second_invalid_move_loses_and_pays_the_role_that_never_spoke() -> None:
    env = TextArenaEnv(env="Guess-v0")
    env.reset(seed=5)
    first = env.step("what?")
    assert "Invalid move." in first.observation["text"]
    last = env.step("what?")
    assert last.terminated
    assert rewards([first, last]) == {"player_0": -1.0, "player_1": 1.0}


@pytest.mark.usefixtures("arena")
def test_role_that_leaves_a_text_game_makes_empty_moves() -> None:
    env = TextArenaEnv(env="Guess-v0")
    env.reset(seed=5)
    step = env.step('{"player_0": null}')
    assert step.terminated
    assert rewards([step]) == {"player_0": -1.0, "player_1": 1.0}


@pytest.mark.usefixtures("arena")
def test_text_game_has_its_own_chance() -> None:
    env = TextArenaEnv(env="Guess-v0")
    random.seed(9)
    expected = random.random()
    random.seed(9)
    secrets: set[int] = set()
    for seed in (1, 1, 2, 3, 4, 5):
        env.reset(seed=seed)
        secrets.add(env._game._secret)  # pyright: ignore[reportPrivateUsage]
    assert random.random() == expected
    assert 1 < len(secrets) < 6


@pytest.mark.usefixtures("arena")
def test_number_too_long_for_python_does_not_crash_a_text_game() -> None:
    env = TextArenaEnv(env="Guess-v0")
    env.reset(seed=1)
    shown = env.step(f"Hm. [{'9' * 6000}]").observation["text"]
    assert f"[Player 0] {'9' * 3999}]" in shown or "Invalid move." in shown


@pytest.mark.usefixtures("arena")
def test_text_game_that_crashes_is_a_fault() -> None:
    env = TextArenaEnv(env="Guess-v0")
    env.reset(seed=1)
    with pytest.raises(EnvFault, match="a bug"):
        env.step("[crash]")


@pytest.mark.usefixtures("arena")
def test_text_game_that_ends_without_rewards_is_a_fault() -> None:
    env = TextArenaEnv(env="Guess-v0")
    env.reset(seed=1)
    with pytest.raises(EnvFault, match="ended without a reward for player 0"):
        env.step("[stop]")


@pytest.mark.usefixtures("arena")
@pytest.mark.parametrize("players", [1, 3])
def test_wrong_number_of_players_is_refused(players: int) -> None:
    with pytest.raises(ConfigurationError, match=f"not for {players} players: .*has to be 2"):
        TextArenaEnv(env="Guess-v0", players=players)


@pytest.mark.usefixtures("arena")
@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("Wordle-v0-long", ConfigurationError, "downloads word lists of NLTK"),
        ("Debate-v0", ConfigurationError, "a language model of OpenRouter"),
        ("Gues-v0", UnknownNameError, "Did you mean 'Guess-v0'"),
        ("Crowd-v0", ConfigurationError, "pass players="),
    ],
)
def test_text_game_that_cannot_be_played_says_why(
    name: str, kind: type[Exception], rule: str
) -> None:
    with pytest.raises(kind, match=rule):
        TextArenaEnv(env=name)
