"""A scripted policy that acts at random on any screen."""

import random
from typing import Any

from envkit.env import Policy, PolicyContext
from envkit.seeds import derive_seed
from envkit_actions.action import Action, ActionKind, Status
from envkit_actions.malformed import InexpressibleActionError


def random_clicks() -> Policy:
    """Return a policy that clicks, drags, types and ends at random, seeded by the context.

    It clicks instead of what the dialect cannot express.
    """

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped  # a wrapper hides the dialect
        rng = random.Random(derive_seed("random clicks", context.seed, context.turn))
        action = _random_action(rng, *env.dialect.size)
        try:
            return str(env.dialect.write([action]))
        except InexpressibleActionError:
            x, y = (rng.randrange(side) for side in env.dialect.size)
            return str(env.dialect.write_click(x, y))

    return reply


def _random_action(rng: random.Random, width: int, height: int) -> Action:
    x, y = rng.randrange(width), rng.randrange(height)
    draw = rng.random()
    if draw < 0.02:
        return Action(kind=ActionKind.TERMINATE, status=rng.choice(list(Status)))
    if draw < 0.72:
        kinds = (ActionKind.CLICK, ActionKind.CLICK, ActionKind.CLICK, ActionKind.DOUBLE_CLICK)
        return Action(kind=rng.choice(kinds), x=x, y=y)
    if draw < 0.82:
        end = (rng.randrange(width), rng.randrange(height))
        return Action(kind=ActionKind.DRAG, x=x, y=y, path=(end,))
    if draw < 0.88:
        return Action(kind=ActionKind.SCROLL, x=x, y=y, dy=rng.choice((-120, 120)))
    if draw < 0.94:
        return Action(kind=ActionKind.TYPE, text=rng.choice(("1", "a", "hello", "42\n")))
    return Action(kind=ActionKind.KEY, keys=(rng.choice(("enter", "tab", "space", "down", "up")),))
