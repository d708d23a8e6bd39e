"""A scripted policy that follows the task's own oracle."""

import json
from typing import Any

from envkit.env import Policy, PolicyContext
from envkit.errors import ConfigurationError
from envkit_actions.dialect import Dialect


def oracle() -> Policy:
    """Return a policy that follows the task's `oracle`, in the environment's dialect."""

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped  # a wrapper hides the plan
        if env.plan is None:
            raise ConfigurationError(
                "this page task has no 'oracle': add a JavaScript expression whose value is the "
                "next action"
            )
        canonical = Dialect("canonical", *env.size).read(json.dumps(env.plan))
        if canonical.problems:
            raise ConfigurationError(
                f"the oracle of this page task must be a canonical action, got {env.plan!r:.200}: "
                f"{canonical.problems[0]}"
            )
        return str(env.dialect.write(canonical.actions))

    return reply
