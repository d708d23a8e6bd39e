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

    def inner_shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return what `shorten` of the wrapped environment returns."""
        shorten = self.env.get_wrapper_attr("shorten")
        return cast("Observation | None", shorten(observation, tokens))
