"""PettingZoo's and TextArena's games: legal moves, rewards, exact repetition, and perfect play."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any

import numpy as np
import pytest
import textarena

import envkit
from envkit.agents import MultiAgentEnv
from envkit.env import PolicyContext, Step
from envkit.errors import ConfigurationError, MissingDependencyError
from envkit_gymnasium.arena import REFUSED as REFUSED_TEXTS
from envkit_gymnasium.arena import REPEATABLE, TextArenaEnv
from envkit_gymnasium.zoo import PettingZooEnv
from envkit_gymnasium.zoo_games import GAMES, REFUSED

pytestmark = [
    pytest.mark.worlds,
    # PettingZoo 1.27 prefers its registry, which earlier versions lack.
    pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning"),
]

SMALL: dict[str, dict[str, Any]] = {
    "chess_v6": {"view": "ansi", "max_turns": 60},  # random play takes some 400 moves
    "go_v5": {"env_kwargs": {"board_size": 5}},
}
TEXTS = (
    *("2048-v0-ultra-easy", "Blackjack-v0", "Breakthrough-v0-small"),
    *("ConnectFour-v0", "FrozenLake-v0", "GuessTheNumber-v0", "KuhnPoker-v0", "LightsOut-v0"),
    *("Mastermind-v0", "Nim-v0", "PigDice-v0", "TicTacToe-v0", "TowerOfHanoi-v0"),
)
IDS = (*GAMES, *TEXTS)
CELLS = [
    *("top_left", "top_center", "top_right"),
    *("middle_left", "center", "middle_right"),
    *("bottom_left", "bottom_center", "bottom_right"),
]
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def made(name: str, **options: Any) -> Any:
    if name in GAMES:
        return PettingZooEnv(env=name, **{**SMALL.get(name, {}), **options})
    return TextArenaEnv(env=name, **options)


def played(env: PettingZooEnv | TextArenaEnv, *, seed: int) -> list[Step]:
    """Play an episode of the random policy to its end."""
    env.reset(seed=seed)
    policy = env.policies["random"]()
    steps: list[Step] = []
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        context = PolicyContext(env=env, task=env.task, turn=len(steps), messages=(), seed=seed)
        steps.append(env.step(policy(context)))
    return steps


def rewards_of(env: MultiAgentEnv, steps: list[Step]) -> dict[str, float]:
    totals = dict.fromkeys(env.roles, 0.0)
    for step in steps:
        for role, told in step.info["agents"].items():
            totals[role] += told["reward"]
        for role, reward in step.info["final_rewards"].items():
            totals[role] += reward
    return totals


def digest(name: str) -> str:
    """Name the texts, images and rewards of an episode."""
    with closing(made(name)) as env:
        parts = [
            (
                step.reward,
                step.observation["text"],
                *(one.sha256 for one in step.observation["images"]),
            )
            for step in played(env, seed=5)
        ]
    return format(random.Random(repr(parts)).getrandbits(64), "x")


def act(action: str) -> str:
    return f'<tool_call>{{"name": "act", "arguments": {{"action": "{action}"}}}}</tool_call>'


def test_every_classic_game_is_known() -> None:
    from pettingzoo.classic.all_modules import classic_environments  # warns that it is old

    names = {name.removeprefix("classic/") for name in classic_environments}
    assert names - set(REFUSED) == set(GAMES)


@pytest.mark.parametrize("name", IDS)
def test_random_play_reaches_the_end_and_repeats(name: str) -> None:
    with closing(made(name)) as env:
        first = played(env, seed=3)
        assert first[-1].terminated or name == "chess_v6"
        assert played(env, seed=3) == first
        assert env.capabilities.replay_safe
        assert env.capabilities.deterministic
        if name in GAMES:
            errors = [
                told["info"].get("parse_error")
                for step in first
                for told in step.info["agents"].values()
            ]
            assert not any(errors)


def test_chess_is_played_to_its_end() -> None:
    with closing(made("chess_v6", max_turns=1000)) as env:
        steps = played(env, seed=3)
        assert steps[-1].terminated
        assert sum(rewards_of(env, steps).values()) == 0


@pytest.fixture(scope="module")
def digests_elsewhere() -> dict[str, str]:
    """Play each game in another process, which hashes strings in another way."""
    code = (
        "import json, runpy, sys\n"
        "sys.path[:0] = sys.argv[2:]\n"
        "found = runpy.run_path(sys.argv[1])\n"
        "print(json.dumps({name: found['digest'](name) for name in found['IDS']}))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, __file__, *sys.path],
        capture_output=True, text=True, check=True, timeout=900,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    ).stdout  # fmt: skip
    return json.loads(shown.splitlines()[-1])


@pytest.mark.parametrize("name", IDS)
def test_game_repeats_in_another_process(name: str, digests_elsewhere: dict[str, str]) -> None:
    assert digests_elsewhere[name] == digest(name)


@pytest.mark.parametrize("name", [name for name in GAMES if name != "chess_v6"])
@pytest.mark.parametrize("seed", range(3))
def test_rewards_are_those_of_pettingzoos_own_loop(name: str, seed: int) -> None:
    with closing(made(name)) as env:
        steps = played(env, seed=seed)
        moves = [move for _, move in env._played]  # pyright: ignore[reportPrivateUsage]
        inner = env._inner  # pyright: ignore[reportPrivateUsage]
        inner.reset(seed=env.task["seed"] % 2**32)
        totals = dict.fromkeys(env.roles, 0.0)
        for agent in inner.agent_iter():
            state, reward, ended, cut, info = inner.last()
            totals[agent] += reward
            named = {} if ended or cut else env._named_actions(agent, state, info)
            inner.step(None if ended or cut else named[moves.pop(0)])
    assert not moves
    assert rewards_of(env, steps) == totals
    assert sum(totals.values()) == 0  # all of them are zero-sum games


@pytest.mark.parametrize("name", TEXTS)
def test_rewards_of_a_text_game_are_textarenas(name: str) -> None:
    with closing(made(name)) as env:
        totals = rewards_of(env, played(env, seed=1))
        own = env._game.state.rewards  # pyright: ignore[reportPrivateUsage]
    assert totals == {f"player_{number}": reward for number, reward in own.items()}


@pytest.mark.parametrize("name", sorted(GAMES))
def test_an_illegal_reply_is_told_and_a_legal_one_follows(name: str) -> None:
    with closing(made(name)) as env:
        env.reset(seed=2)
        (role,) = env.addressed
        before = env.legal_actions
        for attempt in range(2):
            step = env.step(act("fly to the moon"))
            assert (env.addressed, env.legal_actions) == ((role,), before), attempt
            assert "is not a legal action" in step.info["agents"][role]["info"]["parse_error"]
        env.step("I give up")
        assert env._played[0][1] in before  # pyright: ignore[reportPrivateUsage]
        assert env.addressed != (role,) or env.legal_actions != before or not env.addressed


@pytest.mark.parametrize(
    ("name", "action", "across", "down"),
    [
        ("tictactoe_v3", "top_right", 2, 0),
        ("tictactoe_v3", "middle_left", 0, 1),
        ("connect_four_v3", "column_1", 0, 2),
        ("connect_four_v3", "column_7", 2, 2),
        ("go_v5", "A1", 0, 2),
        ("go_v5", "J9", 2, 0),
        ("go_v5", "A9", 0, 0),
        ("chess_v6", "a2a3", 0, 2),
        ("chess_v6", "h2h3", 2, 2),
    ],
)
def test_an_action_changes_its_part_of_the_image(
    name: str, action: str, across: int, down: int
) -> None:
    options = {"env_kwargs": {"board_size": 9}} if name == "go_v5" else {"view": "auto"}
    with closing(made(name, **options)) as env:
        start = env.reset(seed=0).observation["images"][0].pil().convert("RGB")
        after = env.step(act(action)).observation["images"][0].pil().convert("RGB")
    changed = (np.asarray(start) != np.asarray(after)).any(axis=2)
    rows, columns = np.nonzero(changed)
    assert columns.mean() * 3 // changed.shape[1] == across
    assert rows.mean() * 3 // changed.shape[0] == down


def test_images_of_hidden_cards_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="may not know"):
        PettingZooEnv(env="leduc_holdem_v4", view="rgb_array")


def test_rock_paper_scissors_hides_the_first_choice() -> None:
    with closing(made("rps_v2")) as env:
        env.reset(seed=0)
        shown = [env.step(act(choice)).observation["text"] for choice in ("paper", "rock")]
    assert "paper" not in shown[0].partition("legal actions")[0]
    assert "opponent chose rock" in shown[1]


def test_go_boards_of_two_sizes_live_in_one_process() -> None:
    sizes = (5, 9)
    games = [PettingZooEnv(env="go_v5", env_kwargs={"board_size": size}) for size in sizes]
    for game in games:
        game.reset(seed=0)
    for game, size in zip(games, sizes, strict=True):
        assert len(game.legal_actions) == size * size + 1
        game.step(act("A1"))
        assert len(game.legal_actions) == size * size


def test_closing_a_game_leaves_others_drawable() -> None:
    with closing(made("tictactoe_v3")) as env:
        env.reset(seed=0)
        with closing(made("connect_four_v3")) as other:
            other.reset(seed=0)
        assert env.step(act("center")).observation["images"]


@cache
def value(board: str, mover: str) -> int:
    """Return the result of best play for the mover: 1, 0 or -1."""
    other = "O" if mover == "X" else "X"
    if any(all(board[cell] == other for cell in line) for line in LINES):
        return -1
    free = [cell for cell in range(9) if board[cell] == " "]
    return max((-value(put(board, cell, mover), other) for cell in free), default=0)


def put(board: str, cell: int, mark: str) -> str:
    return board[:cell] + mark + board[cell + 1 :]


def best(board: str, mover: str) -> int:
    other = "O" if mover == "X" else "X"
    free = [cell for cell in range(9) if board[cell] == " "]
    return max(free, key=lambda cell: -value(put(board, cell, mover), other))


def board_of(moves: list[tuple[str, str]], cell_of: Callable[[str], int]) -> str:
    board = " " * 9
    for number, (_, move) in enumerate(moves):
        board = put(board, cell_of(move), "XO"[number % 2])
    return board


@pytest.mark.parametrize("role", ["player_1", "player_2"])
@pytest.mark.parametrize("seed", range(8))
def test_perfect_play_never_loses_against_random_play(role: str, seed: int) -> None:
    with closing(PettingZooEnv(env="tictactoe_v3", opponent="random", role=role)) as env:
        env.reset(seed=seed)
        mark = "X" if role == "player_1" else "O"
        steps: list[Step] = []
        while env.addressed:
            assert env.addressed == (role,)
            board = board_of(env._played, CELLS.index)  # pyright: ignore[reportPrivateUsage]
            steps.append(env.step(act(CELLS[best(board, mark)])))
    assert steps[-1].terminated
    assert rewards_of(env, steps)[role] >= 0


def test_perfect_players_draw_in_both_libraries() -> None:
    with closing(PettingZooEnv(env="tictactoe_v3")) as env:
        env.reset(seed=0)
        board, steps = " " * 9, list[Step]()
        while env.addressed:
            mark = "XO"[len(steps) % 2]
            cell = best(board, mark)
            board = put(board, cell, mark)
            steps.append(env.step(act(CELLS[cell])))
        assert rewards_of(env, steps) == {"player_1": 0.0, "player_2": 0.0}
    with closing(TextArenaEnv(env="TicTacToe-v0")) as arena:
        arena.reset(seed=0)
        board, steps = " " * 9, list[Step]()
        while arena.addressed:
            mark = "XO"[len(steps) % 2]
            cell = best(board, mark)
            board = put(board, cell, mark)
            steps.append(arena.step(f"<think>I know.</think>[{cell}]"))
        assert len(steps) == 9
        assert rewards_of(arena, steps) == {"player_0": 0.0, "player_1": 0.0}


@pytest.mark.parametrize(
    ("name", "moves", "expected"),
    [
        ("chess_v6", "f2f3 e7e5 g2g4 d8h4", [-1, 1]),
        ("connect_four_v3", "column_1 column_2 " * 3 + "column_1", [1, -1]),
        ("go_v5", "C3 pass pass", [1, -1]),
        ("go_v5", "pass pass", [-1, 1]),
        ("rps_v2", "rock scissors", [1, -1]),
        ("tictactoe_v3", "top_left center top_center bottom_left top_right", [1, -1]),
    ],
)  # fmt: skip
def test_known_game_has_its_result(name: str, moves: str, expected: list[float]) -> None:
    options = {"max_turns": 2} if name == "rps_v2" else {}
    with closing(made(name, **options)) as env:
        env.reset(seed=0)
        steps = [env.step(act(move)) for move in moves.split()]
        assert [*rewards_of(env, steps).values()] == expected
        assert not env.addressed


def nim_move(text: str) -> str:
    """Leave piles whose sizes cancel out in binary; take one if they already do."""
    piles = [int(size) for size in re.findall(r"pile \d: (\d+)", text)[-3:]]
    total = piles[0] ^ piles[1] ^ piles[2]
    for place, size in enumerate(piles):
        if size ^ total < size:
            return f"[{place} {size - (size ^ total)}]"
    return f"[{piles.index(max(piles))} 1]"


@pytest.mark.parametrize("seed", range(3))
def test_perfect_play_wins_nim_from_the_first_move(seed: int) -> None:
    with closing(TextArenaEnv(env="Nim-v0")) as env:
        text, steps = env.reset(seed=seed).observation["text"], list[Step]()
        while env.addressed:
            steps.append(env.step(nim_move(json.loads(text)[env.addressed[0]])))
            text = steps[-1].observation["text"]
        assert rewards_of(env, steps) == {"player_0": 1.0, "player_1": -1.0}


@pytest.mark.parametrize("seed", range(4))
def test_halving_the_range_guesses_the_number(seed: int) -> None:
    with closing(TextArenaEnv(env="GuessTheNumber-v0")) as env:
        env.reset(seed=seed)
        low, high, steps = 1, 20, list[Step]()
        while env.addressed:
            middle = (low + high) // 2
            steps.append(env.step(f"[{middle}]"))
            is_higher = "higher" in steps[-1].observation["text"]
            low, high = (middle + 1, high) if is_higher else (low, middle - 1)
        assert len(steps) <= 5
        assert rewards_of(env, steps) == {"player_0": 1.0}


def test_shortest_tower_of_hanoi_is_solved() -> None:
    with closing(TextArenaEnv(env="TowerOfHanoi-v0")) as env:
        env.reset(seed=0)
        steps = [
            env.step(f"[{source} {target}]")
            for source, target in ("AC", "AB", "CB", "AC", "BA", "BC", "AC")
        ]
        assert not env.addressed
        assert rewards_of(env, steps) == {"player_0": 1.0}


@pytest.mark.parametrize("name", ["tictactoe_v3", "rps_v2", "TicTacToe-v0", "GuessTheNumber-v0"])
def test_game_passes_the_checker(name: str) -> None:
    with closing(made(name, max_turns=8)) as env:
        assert {"gymnasium", "determinism", "replay"} <= set(envkit.check_env(env).passed)


def test_another_module_is_played_by_its_name() -> None:
    with closing(PettingZooEnv(env="pettingzoo.classic:rps_v2", max_turns=4)) as env:
        assert not env.capabilities.replay_safe
        assert "Your legal actions: 0, 1, 2." in env.reset(seed=0).observation["text"]
        env.step(act("2"))
        assert env.step(act("1")).info["agents"].keys() == {"player_0"}


@pytest.mark.parametrize("name", sorted(REFUSED_TEXTS))
def test_a_game_that_cannot_be_played_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot be played: {REFUSED_TEXTS[name]}"):
        TextArenaEnv(env=f"{name}-v0")


def test_the_worst_button_of_the_bandit_still_pays_most() -> None:
    paid: dict[float, float] = {}
    for button in ("red", "blue", "green", "yellow", "purple"):
        game: Any = textarena.make("Bandit-v0")
        game.reset(num_players=1, seed=0)
        for _ in range(21):
            game.step(action=f"[{button}]")
        paid[game.state.game_state["ground_truth"][button]] = game.close()[0][0]
    assert paid[min(paid)] == max(paid.values()) > paid[max(paid)] == 0


def test_a_game_that_does_not_import_says_why() -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("TextArena's chess imports from Python 3.12 on")
    with pytest.raises((ConfigurationError, MissingDependencyError), match="f-string: unmatched"):
        TextArenaEnv(env="Chess-v0")


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("reply", ["", "[[", f"[{'9' * 6000}]", "[-1]", "[²]", "\ud800\x00"])
def test_text_game_takes_any_reply(name: str, reply: str) -> None:
    with closing(made(name)) as env:
        env.reset(seed=1)
        env.step(reply)


def test_hanabi_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="shows all hands"):
        PettingZooEnv(env="hanabi_v5")


def test_repeatable_text_games_are_those_that_are_played_here() -> None:
    assert {name.partition("-v")[0] for name in TEXTS} == REPEATABLE


def test_text_games_leave_the_generators_of_the_process_alone() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    with closing(made("GuessTheNumber-v0")) as env:
        played(env, seed=4)
    assert random.random() == expected


def test_two_text_games_do_not_share_their_chance() -> None:
    with closing(made("PigDice-v0")) as env:
        alone = [json.dumps(step.observation["text"]) for step in played(env, seed=6)]
    with closing(made("PigDice-v0")) as env, closing(made("PigDice-v0")) as other:
        env.reset(seed=6)
        policy = env.policies["random"]()
        for turn, expected in enumerate(alone):
            other.reset(seed=turn)
            other.step("[roll]")
            context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=6)
            assert json.dumps(env.step(policy(context)).observation["text"]) == expected
