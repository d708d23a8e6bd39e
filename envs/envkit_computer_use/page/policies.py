"""Scripted policies: one that follows the task's own oracle, and one that presses anything."""

import json
import random
from typing import Any

from envkit.env import Policy, PolicyContext
from envkit.errors import ConfigurationError
from envkit.seeds import derive_seed
from envkit_computer_use.actions import Action, ActionKind, Status
from envkit_computer_use.dialect import Dialect


def oracle() -> Policy:
    """Return a policy that does what the task's `oracle` says, in the environment's dialect."""

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


def random_clicks() -> Policy:
    """Return a policy that clicks, scrolls, types and ends at random, by the context's seed."""

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped
        rng = random.Random(derive_seed("random page clicks", context.seed, context.turn))
        return str(env.dialect.write([_random_action(rng, *env.size)]))

    return reply


def _random_action(rng: random.Random, width: int, height: int) -> Action:
    x, y, draw = rng.randrange(width), rng.randrange(height), rng.random()
    if draw < 0.02:
        return Action(kind=ActionKind.TERMINATE, status=rng.choice(list(Status)))
    if draw < 0.8:
        return Action(kind=ActionKind.CLICK, x=x, y=y)
    if draw < 0.9:
        return Action(kind=ActionKind.SCROLL, x=x, y=y, dy=rng.choice((-120, 120)))
    return Action(kind=ActionKind.TYPE, text=rng.choice(("1", "a", "hello", "42\n")))
