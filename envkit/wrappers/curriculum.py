"""Harder tasks for a policy that succeeds, easier ones for one that fails."""

import itertools
from collections.abc import Callable
from typing import Any, Final, cast

import gymnasium

from envkit.env import Observation
from envkit.errors import ConfigurationError
from envkit.metrics import SOLVED_ABOVE
from envkit.seeds import derive_seed
from envkit.tasks import ENDLESS_INDEX_LIMIT, Task
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper
from envkit.wrappers.level_progress import Level, LevelProgress

INFO_KEY: Final = "curriculum_level"
"""Key of the reset's info with the level; absent where a task was given."""
_ATTEMPTS: Final = 512
"""Tasks that are looked at for one of the wanted level."""
_serials = itertools.count()


class Curriculum(EnvWrapper):
    """Plays tasks of the level that a shared `LevelProgress` is at.

    Either by an argument of the environment, with an instance for each level, or by a filter of its
    tasks. A task that is given to `reset` is played as it is and does not count, so a recorded
    episode replays whatever the level is now. An episode counts when it ends in the environment,
    not when a fault or a token limit ends it.
    """

    def __init__(
        self,
        env: AnyEnv,
        progress: LevelProgress,
        *,
        argument: str = "level",
        level_of: Callable[[Task], Level] | None = None,
        solved_above: float = SOLVED_ABOVE,
    ) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not; by argument, one that was made by its id.
            progress: Shared by all environments of a rollout.
            argument: Of the environment's constructor, which takes a level.
            level_of: Returns a task's level; tasks of the environment's source are then chosen by
                it, and `argument` is not used.
            solved_above: A higher sum of an episode's rewards counts as solved.

        Raises:
            ConfigurationError: The environment has no spec to make it at another level by, or no
                task source to choose from.
        """
        super().__init__(
            env,
            progress=progress,
            argument=argument,
            level_of=level_of,
            solved_above=solved_above,
        )
        name = type(self.inner).__name__
        if level_of is None and env.spec is None:
            raise ConfigurationError(
                f"a curriculum by the argument {argument!r} makes {name} once for each level: "
                "make it by its id, or pass level_of"
            )
        if level_of is None and self.inner.capabilities.max_sessions == 1:
            raise ConfigurationError(
                f"a curriculum by argument keeps a {name} for each level, which declares "
                "max_sessions=1: pass level_of"
            )
        if level_of is not None and self.inner.tasks is None:
            raise ConfigurationError(f"level_of chooses from a task source; {name} has none")
        self.progress, self.argument, self.level_of = progress, argument, level_of
        self.solved_above = solved_above
        self._given = env
        self._by_level: dict[Level, AnyEnv] = {}
        self._level: Level | None = None
        self._serial, self._episodes = next(_serials), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode at the level that its seed has.

        Raises:
            ConfigurationError: No task of that level was found.
        """
        self._episodes += 1
        self._level = None
        if (options or {}).get("task") is not None:
            return self.env.reset(seed=seed, options=options)
        seed = int(self.inner.np_random.integers(2**31)) if seed is None else seed
        level = self.progress.level_for(seed)
        if self.level_of is None:
            self.env = self._at(level)
        else:
            options = {**(options or {}), "task": self._task(level, seed)}
        observation, info = self.env.reset(seed=seed, options=options)
        self._level = level
        return observation, {**info, INFO_KEY: level}

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply; the last one of an episode counts its result."""
        turn = self.inner.turn
        answer = self.env.step(action)
        if self._level is not None:
            _, reward, terminated, truncated, _ = answer
            key = self.inner.step_key
            local = f"{self._serial}/{self._episodes}"
            episode = local if key is None else key.episode_id
            total = self.progress.add_reward(episode, turn, float(reward))
            if terminated or truncated:
                is_success = total > self.solved_above
                self.progress.record(self._level, is_success, episode=episode)
        return answer

    def close(self) -> None:
        """Close the environments of all levels."""
        made, self._by_level, self.env = self._by_level, {}, self._given
        try:
            for env in made.values():
                env.close()
        finally:
            super().close()  # pyright: ignore[reportUnknownMemberType]  # untyped

    def _at(self, level: Level) -> AnyEnv:
        if level not in self._by_level:
            arguments: dict[str, Any] = {self.argument: level}
            try:
                made = gymnasium.make(
                    cast(Any, self._given.spec), disable_env_checker=True, **arguments
                )
            except TypeError as error:
                raise ConfigurationError(
                    f"{type(self.inner).__name__} cannot be made with {arguments}: {error}"
                ) from error
            self._by_level[level] = cast(AnyEnv, made)
        return self._by_level[level]

    def _task(self, level: Level, seed: int) -> Task:
        source, level_of = self.inner.tasks, self.level_of
        if source is None or level_of is None:
            raise ConfigurationError("a curriculum by tasks needs a task source and level_of")
        limit = ENDLESS_INDEX_LIMIT if source.size is None else source.size
        for attempt in range(_ATTEMPTS):
            # Two draws of 31 bits, for sources with more tasks than one draw can name.
            high, low = (derive_seed("curriculum", seed, attempt, n) for n in range(2))
            task = source.task((high << 31 | low) % limit)
            if level_of(task) == level:
                return task
        raise ConfigurationError(
            f"no task of level {level!r} among {_ATTEMPTS} drawn ones of "
            f"{type(self.inner).__name__}; does level_of return the values of levels?"
        )
