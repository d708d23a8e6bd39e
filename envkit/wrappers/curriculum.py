"""A curriculum: harder tasks after success, easier ones after failure."""

import itertools
from collections.abc import Callable
from typing import Any, Final, cast

import gymnasium

from envkit.env import Observation
from envkit.errors import ConfigurationError
from envkit.seeds import checked_seed, derive_seed
from envkit.success import HOW_TO_DECLARE, UNDECLARED, checked_threshold, reaches, verdict_in
from envkit.tasks import ENDLESS_INDEX_LIMIT, Task
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper
from envkit.wrappers.level_progress import Level, LevelProgress, StepResult

INFO_KEY: Final = "curriculum_level"
"""Key of reset info with the level; absent if a task was given."""
_ATTEMPTS: Final = 512
"""Maximum tasks drawn to find one of the requested level."""
_serials = itertools.count()


class Curriculum(EnvWrapper):
    """Plays tasks at the current level of a shared `LevelProgress`.

    The level is set by a constructor argument, with one instance per level, or by filtering tasks.
    A task passed to `reset` is played unchanged and does not count, so a recorded episode replays
    at any level. An episode counts only if the environment ends it, not if a fault or a token limit
    does.
    """

    def __init__(
        self,
        env: AnyEnv,
        progress: LevelProgress,
        *,
        argument: str = "level",
        level_of: Callable[[Task], Level] | None = None,
        reward_threshold: float | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not. With `argument` it must have been made by its id.
            progress: Shared by all environments of a rollout.
            argument: The constructor argument that takes a level.
            level_of: Returns a task's level. Tasks are then chosen from the environment's source by
                level, and `argument` is not used.
            reward_threshold: Return from which an episode counts as solved; None uses what the
                environment declares (see `envkit.success`).

        Raises:
            ConfigurationError: The environment has no spec for making it at another level, or no
                task source to choose from.
        """
        super().__init__(
            env,
            progress=progress,
            argument=argument,
            level_of=level_of,
            reward_threshold=reward_threshold,
        )
        name = type(self.inner).__name__
        if level_of is None and env.spec is None:
            raise ConfigurationError(
                f"a curriculum by the argument {argument!r} makes one {name} per level: "
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
        self.reward_threshold = checked_threshold(reward_threshold)
        self._given = env
        self._by_level: dict[Level, AnyEnv] = {}
        self._level: Level | None = None
        self._serial, self._episodes = next(_serials), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode at the level of its seed.

        Raises:
            ConfigurationError: No task of that level was found.
        """
        self._episodes += 1
        self._level = None
        if (options or {}).get("task") is not None:
            return self.env.reset(seed=seed, options=options)
        seed = checked_seed(self.inner.np_random.integers(2**31) if seed is None else seed)
        level = self.progress.level_for(seed)
        if self.level_of is None:
            self.env = self._at(level)
        else:
            options = {**(options or {}), "task": self._task(level, seed)}
        observation, info = self.env.reset(seed=seed, options=options)
        self._level = level
        return observation, {**info, INFO_KEY: level}

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply; count the result at the end of the episode.

        Raises:
            ConfigurationError: The episode is over, and nothing declares what success is.
        """
        turn = self.inner.turn
        answer = self.env.step(action)
        if self._level is not None:
            _, reward, terminated, truncated, info = answer
            own = self.inner.own_reward
            key = self.inner.step_key
            local = f"{self._serial}/{self._episodes}"
            episode = local if key is None else key.episode_id
            result = StepResult(float(reward) if own is None else own, verdict_in(info))
            so_far = self.progress.add_step(episode, turn, result)
            if terminated or truncated:
                self.progress.record(self._level, self._is_success(so_far), episode=episode)
        return answer

    def close(self) -> None:
        """Close the environments of all levels."""
        made, self._by_level, self.env = self._by_level, {}, self._given
        try:
            for env in made.values():
                env.close()
        finally:
            super().close()  # pyright: ignore[reportUnknownMemberType]  # untyped

    def _is_success(self, so_far: StepResult) -> bool:
        threshold = self.reward_threshold
        if threshold is None and so_far.verdict is not None:
            return so_far.verdict
        threshold = self.inner.reward_threshold if threshold is None else threshold
        if threshold is None:
            raise ConfigurationError(
                f"a curriculum needs to know when {type(self.inner).__name__} is solved, but "
                f"{UNDECLARED}: pass reward_threshold=REWARD to the curriculum, or "
                f"{HOW_TO_DECLARE}"
            )
        return reaches(so_far.reward, threshold)

    def _at(self, level: Level) -> AnyEnv:
        if level not in self._by_level:
            arguments: dict[str, Any] = {self.argument: level}
            try:
                made = gymnasium.make(
                    cast(Any, self._given.spec), disable_env_checker=True, **arguments
                )
            except TypeError as error:
                raise ConfigurationError(
                    f"{type(self.inner).__name__} cannot be built with {arguments}: {error}"
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
            f"found no task of level {level!r} in {_ATTEMPTS} draws from "
            f"{type(self.inner).__name__}; check that level_of returns one of levels"
        )
