"""The base class of envkit's wrappers.

A rollout takes snapshots of the unwrapped environment, rebuilds a wrapped one from its spec after a
crash, and replays episodes in it. So a wrapper keeps no per-episode state that such a recovery
would lose: its behaviour is a function of its arguments and of the data that passes through it.
Shared objects, such as a fault plan, are arguments that every instance gets.

A wrapped `AsyncEnv` is played through its synchronous methods on its own thread.
"""

from typing import Any, cast

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from envkit.env import Env, Observation
from envkit.errors import ContractError

AnyEnv = gymnasium.Env[Observation, str]
"""An `envkit.Env`, wrapped or not."""


class EnvWrapper(gymnasium.Wrapper[Observation, str, Observation, str], RecordConstructorArgs):
    """A Gymnasium wrapper of an `envkit.Env` that changes nothing by itself.

    A rollout calls `reset`, `step`, `format_observation` and `shorten` of the outermost wrapper
    that defines them. Tools, system prompt, tasks, capabilities, oracle and snapshots are those of
    the wrapped environment.
    """

    def __init__(self, env: AnyEnv, **recorded: Any) -> None:  # noqa: ANN401  # arguments of subclasses
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            recorded: Arguments of the subclass, kept in the spec. A rollout rebuilds the wrapped
                environment from the spec after a crash.

        Raises:
            ContractError: It is not an envkit environment.
        """
        if not isinstance(env.unwrapped, Env):
            raise ContractError(
                f"{type(self).__name__} wraps an envkit.Env, got {type(env.unwrapped).__name__}"
            )
        RecordConstructorArgs.__init__(self, **recorded)
        gymnasium.Wrapper.__init__(self, env)  # pyright: ignore[reportUnknownMemberType]  # untyped

    @property
    def inner(self) -> Env:
        """The unwrapped environment."""
        return cast(Env, self.unwrapped)

    @property
    def inner_name(self) -> str:
        """The id of the unwrapped environment, or its class if it was not made by an id."""
        spec = self.inner.spec
        return type(self.inner).__name__ if spec is None else spec.id.removeprefix("envkit/")

    def inner_shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return what `shorten` of the wrapped environment returns."""
        shorten = self.env.get_wrapper_attr("shorten")
        return cast("Observation | None", shorten(observation, tokens))


class ObservationWrapper(EnvWrapper):
    """The base class of wrappers that only change observations: subclasses define `changed`."""

    def changed(self, observation: Observation, *, is_first: bool, is_last: bool) -> Observation:
        """Return the observation that the model sees instead.

        Args:
            observation: That of the wrapped environment.
            is_first: Whether it starts the episode.
            is_last: Whether it ends it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define changed(observation, ...)")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode and change its first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.changed(observation, is_first=True, is_last=False), info

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply and change the next observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        is_last = terminated or truncated
        shown = self.changed(observation, is_first=False, is_last=is_last)
        return shown, reward, terminated, truncated, info
