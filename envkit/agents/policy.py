"""Scripted policies of environments with several agents."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from envkit.agents.env import MultiAgentEnv
from envkit.agents.role_env import RoleEnv
from envkit.env import Policy, PolicyContext
from envkit.errors import ConfigurationError
from envkit.seeds import derive_seed

RolePolicy = Callable[[MultiAgentEnv, str, PolicyContext], str]
"""Writes a role's reply from the shared environment, the role and the role's own context. The
environment does not change while it runs."""


def by_role(write: RolePolicy) -> Policy:
    """Return a policy that plays every role, one at a time or all in a joint reply.

    Each role's context has its own seed and that role's messages.
    """

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped
        if isinstance(env, RoleEnv):
            return _write(env.joint_env, env.role, context)
        if not isinstance(env, MultiAgentEnv):
            raise ConfigurationError(
                f"this policy plays environments with several agents, got {type(env).__name__}"
            )
        return json.dumps({role: _joint_part(env, role, context) for role in env.addressed})

    def _write(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
        return write(env, role, replace(context, seed=derive_seed(context.seed, role)))

    def _joint_part(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
        messages = env.conversations[role]
        spoken = sum(entry["role"] == "assistant" for entry in messages)
        return _write(env, role, replace(context, turn=spoken, messages=messages))

    return reply
