"""Wrap TextArena's games for one or two players as environments with several agents."""

import random
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import permutations, product
from threading import RLock
from typing import Any, ClassVar, Final, cast

import numpy as np

from envkit import errors, ranges
from envkit.agents import MultiAgentEnv, by_role
from envkit.env import Capabilities, Policy, PolicyContext, Turn
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit_gymnasium.env import SeedTasks, seed_of
from envkit_gymnasium.inner import foreign
from envkit_gymnasium.values import plain_json

_NLTK: Final = "it downloads word lists of NLTK when it is imported"
_JUDGE: Final = "a language model of OpenRouter plays a part in it"
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("Codenames", "Crosswords", "DontSayIt", "Hangman", "LetterAuction", "SpellingBee"), _NLTK
    ),
    **dict.fromkeys(("WordChains", "WordLadder", "WordSearch", "Wordle"), _NLTK),
    **dict.fromkeys(("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"), _JUDGE),
    "Bandit": "TextArena 0.7.4 pays the regret as the reward, so the worst button pays most",
}
"""Games that are not played, by the start of their ids, and why."""
REPEATABLE: Final = frozenset(
    {
        *("2048", "Blackjack", "Breakthrough", "ConnectFour", "FrozenLake", "GuessTheNumber"),
        *("KuhnPoker", "LightsOut", "Mastermind", "Nim", "PigDice", "TicTacToe", "TowerOfHanoi"),
    }
)
"""Games that repeat with the same seed and replies, in another process too: contract tests play
them twice."""
_MOVES: Final = {
    "GuessTheNumber": [str(number) for number in range(1, 21)],
    "LightsOut": [*map(" ".join, product("01234", repeat=2))],
    "Mastermind": [*map(" ".join, permutations("123456", 4))],
    "Nim": [*map(" ".join, product("012", "12345"))],
    "TowerOfHanoi": [*map(" ".join, permutations("ABC", 2))],
}
"""Moves for random play of games that do not list them. Some are illegal in some positions."""
_STATES: Final = {1: "SinglePlayerState", 2: "TwoPlayerState"}
"""TextArena's classes of a game's state, by the number of players that they allow."""
_BRACKETED: Final = re.compile(r"(?<=[^\n])\[[^\[\]\n]{1,40}\]")
"""What may be a move: at the start of a line it names who speaks."""
_LONGEST: Final = 4_000
"""Characters of a move, from the end of the reply. Python reads no number of more than 4,300
digits, and games do not expect that."""
_MOST_SKIPS: Final = 100
"""Moves of a role that left, in a row, until the game is given up."""
_RANDOM: Final = RLock()
"""TextArena draws from the random generators of the whole process."""


def random_moves() -> Policy:
    """Return a policy that makes a random move of a game that it knows.

    In other games it repeats a random bracketed text that it has read, such as `[4]`.
    """

    def write(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
        rng = random.Random(derive_seed("random moves", context.seed, context.turn))
        if isinstance(env, TextArenaEnv) and env.game in _MOVES:
            return f"[{rng.choice(_MOVES[env.game])}]"
        read = [entry["content"] for entry in env.conversations[role] if entry["role"] == "user"]
        found = (_BRACKETED.findall(str(text)) for text in reversed(read))
        return rng.choice(next(filter(None, found), ["[0]"]))

    return by_role(write)


class TextArenaEnv(MultiAgentEnv):
    """Play a game of TextArena by text.

    Task: `{"seed": 7}`, given to the game's reset.
    Roles: `player_0`, ... in TextArena's order.
    Observation: the game's messages since the role's last turn, without its own replies.
    Action: the reply without its thought, at most its last 4,000 characters, in the form that the
        game asks for, often in brackets; TextArena adds brackets where none are written.
    Reward: TextArena's, at the end: 1 for a win, -1 for a loss, 0 for a draw; a game for one player
        may give a part of 1. A game that `max_turns` cuts gives 0.
    Episode end: when the game ends. TextArena forgives one invalid move in a row in most games; the
        next one loses. A role that reached one of its limits makes empty moves.
    Success: a reward of 1.
    Chance: depends on the game; it follows from the task's seed.
    Source: TextArena, https://www.textarena.ai.
    """

    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {"random": random_moves}

    def __init__(
        self,
        *,
        env: str = "TicTacToe-v0",
        env_kwargs: Mapping[str, Any] | None = None,
        players: int | None = None,
        is_repeatable: bool | None = None,
        max_turns: int = 400,
        render_mode: str | None = None,
    ) -> None:
        """Create the game.

        Args:
            env: The id of a game, such as "TicTacToe-v0".
            env_kwargs: Its arguments.
            players: Number of players; None finds out whether the game is for one or for two.
            is_repeatable: Promises that a seed and the same replies give the same episode; None
                promises it for games that were tested.
            max_turns: Replies of all roles before truncation.
            render_mode: As for `envkit.Env`; applies to the transcript.

        Raises:
            ConfigurationError: There is no such game, or it cannot be played.
            MissingDependencyError: TextArena is not installed.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        ranges.at_least(1, players=players)
        self._id, self._options = env, dict(env_kwargs or {})
        self._randomness: tuple[Any, Any] | None = None
        _check(env)
        self.game = env.partition("-v")[0]
        """The id without its version."""
        self.roles = tuple(f"player_{n}" for n in range(self._count(players)))
        self.tasks = SeedTasks()
        self.default_threshold = 1.0
        is_known = self.game in REPEATABLE
        if is_repeatable or (is_repeatable is None and is_known):
            self.capabilities = Capabilities(replay_safe=True, deterministic=True)  # pyright: ignore[reportAttributeAccessIssue]  # instances differ by their game
        self._rewards: dict[str, float] = {}

    def on_reset(self, task: Task) -> Mapping[str, Turn]:
        """Create the game anew and reset it with the task's seed.

        Raises:
            DatasetError: The task has no seed.
            EnvFault: The game failed.
        """
        seed = seed_of(task)
        self._rewards = {}
        with foreign("reset", cast(Any, self._id)), self._own_randomness(seed):
            self._game: Any = self._made()
            self._game.reset(num_players=len(self.roles), seed=seed)
        return self._next_turn({})

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        """Play the reply of the role whose turn it is.

        Raises:
            EnvFault: The game failed.
        """
        (reply,) = self.replies.values()
        is_over = self._play("" if reply is None else reply.final[-_LONGEST:])
        for _ in range(_MOST_SKIPS):
            if is_over or self._role() not in self._left:
                break
            is_over = self._play("")
        if is_over:
            return self._ended()
        if self._role() in self._left:
            return {}
        return self._next_turn({} if reply is None else {"parse_error": reply.problem or None})

    def on_end(self) -> Mapping[str, float]:
        """Reward the roles that never spoke or that left."""
        return self._rewards

    def _count(self, players: int | None) -> int:
        """Try the number of players, or find the one for which TextArena has a state of its own.

        Raises:
            ConfigurationError: The game cannot be made, or not for this number of players.
            MissingDependencyError: It needs a package that is not installed.
        """
        said = ""
        for count in _STATES if players is None else (players,):
            with self._own_randomness(0):
                game = self._tried()
                try:
                    game.reset(num_players=count, seed=0)
                except Exception as error:  # noqa: BLE001  # a foreign game rejects in its own way
                    said = f"{error!r:.300}"
                    continue
            state = vars(_base(game)).get("state")
            if players is not None or type(state).__name__ == _STATES[count]:
                return count
        if players is not None:
            raise errors.ConfigurationError(f"{self._id!r} is not for {players} players: {said}")
        raise errors.ConfigurationError(
            f"{self._id!r} is not known to be a game for one or two players: pass players= {said}"
        )

    def _tried(self) -> Any:  # noqa: ANN401  # a TextArena game
        try:
            return self._made()
        except ImportError as error:
            raise errors.MissingDependencyError(
                f"the game {self._id!r} needs a package, which pip install adds: {error}"
            ) from error
        except Exception as error:  # a foreign constructor may raise anything
            raise errors.ConfigurationError(
                f"the game {self._id!r} cannot be made with {self._options!r:.200}: {error!r:.300}"
            ) from error

    def _made(self) -> Any:  # noqa: ANN401  # a TextArena game
        return import_module("textarena").make(self._id, **self._options)

    @contextmanager
    def _own_randomness(self, seed: int | None = None) -> Generator[None]:
        """Give the game its own state of the process's generators."""
        with _RANDOM:
            outside = random.getstate(), np.random.get_state()
            try:
                if seed is not None:
                    random.seed(seed)
                    np.random.seed(seed % 2**32)
                elif self._randomness is not None:
                    random.setstate(self._randomness[0])
                    np.random.set_state(self._randomness[1])
                yield
            finally:
                self._randomness = random.getstate(), np.random.get_state()
                random.setstate(outside[0])
                np.random.set_state(outside[1])

    def _play(self, text: str) -> bool:
        with foreign("step", cast(Any, self._id)), self._own_randomness():
            is_over, _ = self._game.step(action=text)
        return bool(is_over)

    def _role(self) -> str:
        return f"player_{_base(self._game).state.current_player_id}"

    def _next_turn(self, info: Mapping[str, Any]) -> dict[str, Turn]:
        role = self._role()
        with foreign("get_observation", cast(Any, self._id)), self._own_randomness():
            number, messages = _base(self._game).get_observation()
        return {role: Turn(self._told(number, messages), info=info)}

    def _told(self, number: int, messages: list[tuple[int, str, Any]]) -> str:
        names: Mapping[int, str] = _base(self._game).state.role_mapping or {}
        return "\n".join(
            f"[{names.get(who, f'Player {who}' if who >= 0 else 'GAME')}] {text}"
            for who, text, _ in messages
            if who != number
        )

    def _ended(self) -> dict[str, Turn]:
        with foreign("close", cast(Any, self._id)), self._own_randomness():
            rewards, facts = self._game.close()
            for number in range(len(self.roles)):
                if number not in (rewards or {}):
                    raise LookupError(f"the game ended without a reward for player {number}")
        turns: dict[str, Turn] = {}
        for number, role in enumerate(self.roles):
            reward = float(rewards[number])
            if role in self._left or role not in self.conversations:
                self._rewards[role] = reward
                continue
            text = self._told(number, _base(self._game).state.observations[number])
            info = {"game": plain_json(facts.get(number, {}))}
            turns[role] = Turn(text, reward=reward, done=True, info=info)
        return turns


def _base(game: Any) -> Any:  # noqa: ANN401  # a TextArena game
    """Return the game below its wrappers, which repeat the whole conversation on every turn."""
    while "env" in vars(game):
        game = game.env
    return game


def _check(env: str) -> None:
    """Import TextArena and check the id.

    Raises:
        ConfigurationError: There is no such game, or it cannot be played.
        MissingDependencyError: TextArena is not installed.
    """
    reason = REFUSED.get(env.partition("-v")[0])
    if reason is not None:
        raise errors.ConfigurationError(f"the game {env!r} cannot be played: {reason}")
    try:
        import_module("textarena")
    except ModuleNotFoundError as error:
        raise errors.MissingDependencyError(
            f"the game {env!r} needs the package textarena: pip install textarena"
        ) from error
    known = [*import_module("textarena.envs.registration").ENV_REGISTRY]
    if env not in known:
        raise errors.UnknownNameError.suggest("game of TextArena", env, known)
