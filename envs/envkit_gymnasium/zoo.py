"""Wrap PettingZoo's games, in which agents take turns, as environments with several agents."""

import copy
import random
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from importlib import import_module
from threading import RLock
from typing import Any, ClassVar, Final, cast

import numpy as np
from gymnasium import spaces

from envkit import errors, ranges
from envkit.agents import MultiAgentEnv, by_role
from envkit.env import Capabilities, Policy, PolicyContext, Turn
from envkit.images import Image
from envkit.marks import clip
from envkit.reply import Reply
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.twins import FEEDBACK
from envkit_gymnasium.ansi import show_ansi
from envkit_gymnasium.env import SeedTasks, seed_of
from envkit_gymnasium.inner import View, foreign
from envkit_gymnasium.replies import TOOL, ActionReader, Actions
from envkit_gymnasium.sentences import fitted, holds_picture, picture, show_value
from envkit_gymnasium.zoo_games import GAMES, REFUSED, Game

_CLASSIC: Final = "pettingzoo.classic"
_MOST_LISTED: Final = 128
"""Legal actions that are listed; of more, such as on an empty Go board, the first ones."""
_LONGEST: Final = 64
_SHARED: Final = RLock()
"""Held while a game runs whose rules depend on process-wide variables."""


class Opponent(StrEnum):
    """Who plays the other roles."""

    RANDOM = "random"
    """Each plays a random legal action, drawn with the task's seed."""


class _Move(spaces.Text):
    """The name of an action; whether it is legal depends on the position."""

    def contains(self, x: Any) -> bool:  # noqa: ANN401  # Gymnasium's signature
        return isinstance(x, str)


def random_moves() -> Policy:
    """Return a policy that plays a random legal action, seeded by the context's seed and turn."""

    def write(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
        if not isinstance(env, PettingZooEnv):
            raise errors.ConfigurationError(f"this policy plays PettingZooEnv, got {env!r:.80}")
        return env.random_reply(derive_seed("random moves", context.seed, context.turn))

    return by_role(write)


class PettingZooEnv(MultiAgentEnv):
    """Play a PettingZoo game whose agents take turns (its AEC interface).

    Task: `{"seed": 7}`, given to the game's reset.
    Roles: the game's agents. With `opponent`, one role; random play moves the others.
    Observation: what the others played, the position, and the legal actions by name. A board is
        shown as an image. Card games and Rock Paper Scissors are described in words, because their
        images show what a player may not know.
    Action: a call of the tool `act`, or an action in `<action>` tags.
    Reward: PettingZoo's cumulative rewards of the agent, at its next turn or at the end.
    Episode end: when the game ends for all roles. After an unreadable or illegal reply nothing is
        played and the role speaks again; after `retries` such replies in a row, the next one is
        replaced by a random legal action. A role that reached one of its limits plays at random.
    Success: a win, in the classic games.
    Chance: depends on the game; it follows from the task's seed.
    Source: PettingZoo, https://pettingzoo.farama.org.
    """

    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {"random": random_moves}

    def __init__(
        self,
        *,
        env: str | Callable[..., Any] = "connect_four_v3",
        env_kwargs: Mapping[str, Any] | None = None,
        view: str = View.AUTO,
        opponent: str | None = None,
        role: str | None = None,
        retries: int = 2,
        min_side: int = 448,
        max_side: int = 1024,
        action_form: str = "tool",
        call_format: str = "auto",
        instructions: str | None = None,
        is_repeatable: bool | None = None,
        max_turns: int = 600,
        render_mode: str | None = None,
    ) -> None:
        """Create the game.

        Args:
            env: A classic game such as "chess_v6", `module:name` of another one, or a function that
                creates it from `env_kwargs` and perhaps `render_mode`.
            env_kwargs: Its arguments.
            view: A `View`. `auto` shows an image if the game renders one and its observation holds
                none; an image shows the whole position to each role.
            opponent: An `Opponent` that plays all roles but one; None: models play all.
            role: The role that the model plays if there is an opponent; None: the first.
            retries: Bad replies in a row after which the role may try again.
            min_side: Pixels; a smaller image is enlarged by a whole factor to about this size.
            max_side: Pixels; a larger image is scaled down.
            action_form: An `ActionForm`: "tool" or "tags".
            call_format: How calls are written, a `ToolCallFormat`.
            instructions: The rules, for the system prompt; None uses those of a classic game.
            is_repeatable: Promises that a seed and the same actions give the same episode; None
                promises it for the classic games.
            max_turns: Replies of all roles before truncation.
            render_mode: As for `envkit.Env`; applies to the transcript.

        Raises:
            ConfigurationError: An argument is wrong, or the game cannot be created or played.
            MissingDependencyError: The game needs a package that is not installed.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        ranges.at_least(0, retries=retries)
        ranges.at_least(1, min_side=min_side, max_side=max_side)
        known = GAMES.get(env) if isinstance(env, str) else None
        self._game = known or Game()
        self._inner, self._view = _make(
            env, {**self._game.arguments, **(env_kwargs or {})}, view, self._game
        )
        agents = [str(agent) for agent in self._inner.possible_agents]
        self._agents = dict(zip(agents, self._inner.possible_agents, strict=True))
        self.roles = _roles(agents, opponent, role)
        self._readers = {
            one: _reader(self._inner.action_space(self._agents[one]), action_form, call_format)
            for one in agents
        }
        self.tools = self._readers[agents[0]].tools
        self.tasks = SeedTasks()
        self.default_threshold = self._game.threshold
        if is_repeatable or (is_repeatable is None and known is not None):
            self.capabilities = Capabilities(replay_safe=True, deterministic=True)  # pyright: ignore[reportAttributeAccessIssue]  # instances differ by their game
        rules = self._game.rules if instructions is None else instructions
        self.prompts = {one: self._prompt(one, rules) for one in self.roles}
        self._retries, self._sides = retries, {"min_side": min_side, "max_side": max_side}
        # Moves of a game that is turned into turns are secret until all have chosen.
        self._shows_moves = self._inner.metadata.get("is_parallelizable") is False
        self._is_closed = False
        self._start(0)

    def on_reset(self, task: Task) -> Mapping[str, Turn]:
        """Reset the game with the task's seed.

        Raises:
            DatasetError: The task has no seed.
            EnvFault: The game failed.
        """
        seed = seed_of(task)
        self._start(seed)
        with self._calling("reset"):
            self._inner.reset(seed=seed % 2**32)  # RLCard accepts no larger one
        return self._proceed()

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        """Play the reply of the role whose turn it is.

        Raises:
            EnvFault: The game failed.
        """
        ((role, reply),) = self.replies.items()
        if reply is None:
            self._left.add(role)
            self._play(self._random_move(self._rng))
            return self._proceed()
        said, move = self._read(reply)
        self._reports[role] = {"parse_error": said.error, "tool_call": said.call}
        if said.error is not None:
            self._misses += 1
            text = f"Nothing was played: {said.error}."
            if self._misses <= self._retries:
                info = {**self._reports.pop(role), FEEDBACK: text}
                return {role: Turn(f"{text} {self._legal_actions()}", info=info)}
            move = self._random_move(self._rng)
            text = f"Your reply was not played: {said.error}. {self._name(move)} was drawn instead."
            self._notes[role] = text
        mark = {"kind": "call", "label": TOOL, "text": clip(self._name(move))}
        self._reports[role] |= {"action": self._name(move), "marks": [mark]}
        self._play(move)
        return self._proceed()

    def on_end(self) -> Mapping[str, float]:
        """Pay what PettingZoo would report at the next turn of each agent."""
        for role in self.roles:
            agent = self._agents[role]
            if agent in self._inner.agents and role != self._paid:
                self._owed[role] += float(self._inner._cumulative_rewards[agent])
        return {role: owed for role, owed in self._owed.items() if owed and role in self.roles}

    def close(self) -> None:
        """Close the game; safe to call twice."""
        # A classic game has nothing to close but pygame, which other games of this process use.
        if not self._is_closed and self._game not in GAMES.values():
            self._inner.close()
        self._is_closed = True

    def random_reply(self, seed: int) -> str:
        """Return a reply of the role whose turn it is, with a random legal action."""
        move = self._random_move(random.Random(seed))
        reader = self._readers[self._current]
        return reader.write(self._name(move) if self._legal else move)

    @property
    def legal_actions(self) -> tuple[str, ...]:
        """Names of the legal actions of the role whose turn it is; empty if they have no names."""
        return tuple(self._legal)

    def _start(self, seed: int) -> None:
        self._rng = random.Random(derive_seed("random moves of the environment", seed))
        self._owed = dict.fromkeys(self._agents, 0.0)
        self._totals = dict.fromkeys(self._agents, 0.0)
        self._reports: dict[str, dict[str, Any]] = {}
        self._notes: dict[str, str] = {}
        self._played: list[tuple[str, str]] = []
        self._seen = dict.fromkeys(self._agents, 0)
        self._current, self._paid, self._misses = "", "", 0
        self._legal: dict[str, Any] = {}

    @contextmanager
    def _calling(self, what: str) -> Generator[None]:
        prepare = self._game.prepare
        with foreign(what, self._inner), _SHARED if prepare else nullcontext():
            if prepare:
                prepare(self._inner)
            yield

    def _proceed(self) -> dict[str, Turn]:
        """Play until a role has to speak, and return its turn and those of roles that are done."""
        turns: dict[str, Turn] = {}
        while self._inner.agents and set(self.roles) - self._done - self._left - {*turns}:
            agent = self._inner.agent_selection
            name = str(agent)
            with self._calling("last"):
                state, reward, ended, cut, info = self._inner.last()
            self._owed[name] += float(reward)
            self._totals[name] += float(reward)
            self._paid = self._current = name
            if ended or cut:
                with self._calling("step"):
                    self._inner.step(None)
                if name in self.conversations and name not in self._left:
                    turns[name] = self._last_turn(name)
                continue
            self._legal = self._named_actions(agent, state, info)
            if not self._legal and isinstance(self._inner.action_space(agent), spaces.Discrete):
                raise errors.EnvFault(
                    f"{name} has no legal action", kind=errors.FaultKind.PERMANENT
                )
            if name in self.roles and name not in self._left:
                turns[name] = self._next_turn(name, state)
                break
            self._play(self._random_move(self._rng))
        return turns

    def _play(self, move: Any) -> None:  # noqa: ANN401  # an element of the action space
        self._misses = 0
        self._played.append((self._current, self._name(move)))
        with self._calling("step"):
            self._inner.step(move)

    def _next_turn(self, role: str, state: Any) -> Turn:  # noqa: ANN401  # any observation
        text, images = self._look(role, state)
        parts = (self._notes.pop(role, ""), self._others(role), text, self._legal_actions())
        return self._turn(role, "\n\n".join(filter(None, parts)), images)

    def _last_turn(self, role: str) -> Turn:
        ending = f"The game is over. Your reward: {self._totals[role]:g}."
        parts = (self._notes.pop(role, ""), self._others(role), ending)
        return self._turn(role, "\n\n".join(filter(None, parts)), (), done=True)

    def _turn(self, role: str, text: str, images: Any, *, done: bool = False) -> Turn:  # noqa: ANN401  # images
        has_spoken = role in self.conversations
        reward = self._owed[role] if has_spoken else 0.0
        self._owed[role] -= reward
        info = self._reports.pop(role, {})
        return Turn(text, images=tuple(images), reward=reward, done=done, info=info)

    def _others(self, role: str) -> str:
        """Say what the others played since the role's last turn."""
        start, self._seen[role] = self._seen[role], len(self._played)
        moves = [one for one in self._played[start:] if one[0] != role]
        return " ".join(f"{who} played {move}." for who, move in moves if self._shows_moves)

    def _look(self, role: str, state: Any) -> tuple[str, list[Image]]:  # noqa: ANN401  # any observation
        agent = self._agents[role]
        if self._view is View.STATE and self._game.words is not None:
            return self._game.words(self._inner, agent), []
        if self._view is not View.STATE:
            with self._calling("render"):
                drawn: Any = self._inner.render()
                if self._view is View.ANSI:
                    return show_ansi(str(drawn)), []
                return "", [fitted(picture(np.asarray(drawn, np.uint8)), **self._sides)]
        space = self._inner.observation_space(agent)
        if isinstance(space, spaces.Dict) and isinstance(state, Mapping) and "action_mask" in state:
            space, state = space["observation"], cast("Mapping[str, Any]", state)["observation"]
        text, images = show_value(space, state)
        return text, [fitted(image, **self._sides) for image in images]

    def _named_actions(self, agent: Any, state: Any, info: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401  # PettingZoo's
        space = self._inner.action_space(agent)
        if not isinstance(space, spaces.Discrete):
            return {}
        holder: Any = state if isinstance(state, Mapping) and "action_mask" in state else info
        mask = holder.get("action_mask")
        legal = range(int(space.n)) if mask is None else np.flatnonzero(mask).tolist()
        actions = [int(space.start) + place for place in legal]
        return {self._game.name_of(self._inner, agent, action): action for action in actions}

    def _legal_actions(self) -> str:
        names = [*self._legal]
        if not names:
            return ""
        more = f" and {len(names) - _MOST_LISTED} more" * (len(names) > _MOST_LISTED)
        return f"Your legal actions: {', '.join(names[:_MOST_LISTED])}{more}."

    def _name(self, move: Any) -> str:  # noqa: ANN401  # an element of the action space
        named = [name for name, action in self._legal.items() if action == move]
        return named[0] if named else self._readers[self._current].say(move)

    def _random_move(self, rng: random.Random) -> Any:  # noqa: ANN401  # an element of the space
        if self._legal:
            return self._legal[rng.choice([*self._legal])]
        space = copy.deepcopy(self._inner.action_space(self._agents[self._current]))
        space.seed(rng.getrandbits(31))
        return space.sample()

    def _read(self, reply: Reply) -> tuple[Actions, Any]:
        """Return what was read, and the move if it is legal."""
        read = self._readers[self._current].read(reply)
        if read.error is not None or not self._legal:
            return read, next(iter(read.values), None)
        written = read.values[0].strip()
        legal = {name.casefold(): action for name, action in self._legal.items()}
        if written.casefold() in legal:
            return read, legal[written.casefold()]
        error = f"{written[:_LONGEST]!r} is not a legal action"
        return Actions(call=read.call, error=error), None

    def _prompt(self, role: str, rules: str) -> str:
        side = dict(zip(self._agents, self._game.sides, strict=False)).get(role)
        you = f"You are {role} and play {side}." if side else f"You are {role}."
        reader = self._readers[role]
        how = reader.describe()
        if isinstance(reader.space, _Move):
            way = (
                f"by calling the tool {TOOL}" if reader.tools else "between <action> and </action>"
            )
            how = f"Each turn lists your legal actions. Play one of them by its name, {way}."
        return "\n\n".join(filter(None, [rules, you, how]))


def _make(
    env: str | Callable[..., Any], arguments: dict[str, Any], view: str, game: Game
) -> tuple[Any, View]:
    ranges.one_of("view", view, View)
    if "render_mode" in arguments:
        raise errors.ConfigurationError("pass view= instead of 'render_mode' in env_kwargs")
    inner = _create(env, arguments)
    modes = inner.metadata.get("render_modes") or []
    if game.words is not None and view not in (View.AUTO, View.STATE):
        raise errors.ConfigurationError(
            f"the pictures of {env!r} show what a player may not know: leave view out"
        )
    if view == View.AUTO:
        space = inner.observation_space(inner.possible_agents[0])
        is_drawn = View.RGB_ARRAY in modes and not holds_picture(space) and game.words is None
        view = View.RGB_ARRAY if is_drawn else View.STATE
    if view == View.STATE:
        return inner, View.STATE
    if view not in modes:
        raise errors.ConfigurationError(f"{env!r} does not render {view!r}, only {modes}")
    return _create(env, {**arguments, "render_mode": str(view)}), View(view)


def _create(env: str | Callable[..., Any], arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401  # a PettingZoo environment
    name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    if name in REFUSED:
        raise errors.ConfigurationError(f"{name!r} cannot be played: {REFUSED[name]}")
    try:
        inner = (_factory(env) if isinstance(env, str) else env)(**arguments)
    except errors.EnvkitError:
        raise
    except ModuleNotFoundError as error:
        raise _missing(env, name, error) from error
    except Exception as error:  # a foreign constructor may raise anything
        raise errors.ConfigurationError(
            f"the game {name!r} cannot be made with {dict(arguments)!r:.200}: {error!r:.300}"
        ) from error
    if not (hasattr(inner, "last") and hasattr(inner, "possible_agents")):
        raise errors.ConfigurationError(
            f"{name!r} must make a PettingZoo AECEnv with possible_agents, got "
            f"{type(inner).__name__}; pettingzoo.utils.parallel_to_aec converts a ParallelEnv"
        )
    return inner


def _missing(env: Any, name: str, error: ModuleNotFoundError) -> errors.EnvkitError:  # noqa: ANN401  # an id or a function
    module = env.rpartition(":")[0] or _CLASSIC if isinstance(env, str) else ""
    package, _, family = module.partition(".")
    if package == "pettingzoo":
        line = f"'pettingzoo[{family.partition('.')[0]}]'"
    elif module and f"{module}.".startswith(f"{error.name}."):
        return errors.ConfigurationError(f"there is no module {error.name!r} for env={name!r}")
    else:
        line = str(error.name)
    return errors.MissingDependencyError(
        f"the game {name!r} needs the package {error.name}: pip install {line}"
    )


def _factory(env: str) -> Callable[..., Any]:
    module, _, name = env.rpartition(":")
    if not module and env not in GAMES:
        raise errors.UnknownNameError.suggest("classic game of PettingZoo", env, GAMES)
    module = module or _CLASSIC
    try:
        found: Any = import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{module}.{name}":
            raise
        found = getattr(import_module(module), name, None)
    made = getattr(found, "env", found)
    if not callable(made):
        raise errors.ConfigurationError(f"{module} has no game {name!r} to call, got {made!r:.80}")
    return made


def _roles(agents: list[str], opponent: str | None, role: str | None) -> tuple[str, ...]:
    if opponent is None:
        if role is not None:
            raise errors.ConfigurationError(f"role={role!r} needs opponent='random'")
        return tuple(agents)
    ranges.one_of("opponent", opponent, Opponent)
    return (ranges.one_of("role", role or agents[0], agents),)


def _reader(space: Any, form: str, call_format: str) -> ActionReader:  # noqa: ANN401  # a Gymnasium space
    shown = _Move(_LONGEST) if isinstance(space, spaces.Discrete) else space
    return ActionReader(shown, form=form, call_format=call_format)
