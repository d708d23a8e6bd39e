"""Episodes of an environment and a policy alone, without an engine and without tokens."""

from collections.abc import Mapping
from typing import Any

from envkit.env import Policy, PolicyContext, Step


def steps_of(
    env: Any, policy: Policy | None = None, *, seed: int = 0, task: Mapping[str, Any] | None = None
) -> list[Step]:
    """Play an episode to its end and return its steps.

    Args:
        env: An environment, wrapped by Gymnasium or not.
        policy: None is the environment's oracle.
        seed: Of the reset and of the policy.
        task: None lets the environment choose one by the seed.
    """
    env.reset(seed=seed, options=None if task is None else {"task": task})
    inner, steps = env.unwrapped, list[Step]()
    reply: Policy = policy or inner.oracle()
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        assert len(steps) < 1000, "the episode does not end"
        turn = len(steps)
        context = PolicyContext(env=inner, task=inner.task, turn=turn, messages=(), seed=seed)
        steps.append(Step(*env.step(reply(context))))
    return steps
