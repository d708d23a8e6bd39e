"""The base of envkit's wrappers.

A rollout takes snapshots of the environment itself, rebuilds a wrapped one from its spec after a
crash, and replays episodes in it. So a wrapper keeps no state of an episode that such a recovery
would lose: what it does is a function of its arguments and of what passes through it. What several
instances share, such as a fault plan, is an argument that every instance gets.

An `AsyncEnv` inside a wrapper is played by its synchronous methods, on its own thread.
"""

from typing import Any, cast

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from envkit.env import Env, Observation
from envkit.errors import ContractError

AnyEnv = gymnasium.Env[Observation, str]
"""An `envkit.Env`, wrapped or not."""


class EnvWrapper(gymnasium.Wrapper[Observation, str, Observation, str], RecordConstructorArgs):
    """A Gymnasium wrapper of an `envkit.Env`: by itself it changes nothing.

    A rollout calls `reset`, `step`, `format_observation` and `shorten` of the outermost wrapper
    that defines them. Tools, system prompt, tasks, capabilities, oracle and snapshots are those of
    the environment inside.
    """

    def __init__(self, env: AnyEnv, **recorded: Any) -> None:  # noqa: ANN401  # arguments of subclasses
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            recorded: Arguments of the subclass, kept in the spec, from which a rollout rebuilds
                the wrapped environment after a crash.

        Raises:
            ContractError: It is no envkit environment.
        """
        if not isinstance(env.unwrapped, Env):
            raise ContractError(
                f"{type(self).__name__} wraps an envkit.Env, got {type(env.unwrapped).__name__}"
            )
        RecordConstructorArgs.__init__(self, **recorded)
        gymnasium.Wrapper.__init__(self, env)  # pyright: ignore[reportUnknownMemberType]  # untyped

    @property
    def inner(self) -> Env:
        """The environment itself, without wrappers."""
        return cast(Env, self.unwrapped)
