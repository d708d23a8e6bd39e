"""Scripted policies."""

from typing import Any, Final

from envkit.env import Policy, PolicyContext
from envkit_actions.action import Action, ActionKind, Status
from envkit_actions.parsed import MAX_ACTIONS
from envkit_linux_desktop.tasks.moves import Moves
from envkit_linux_desktop.tasks.oracle import plan

_MAX_WAITS: Final = 10


def oracle() -> Policy:
    """Return a policy that solves tasks by keys; a reply has all up to the next look at windows."""
    moves: dict[int, Moves] = {}

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped  # a wrapper hides the session
        if context.turn == 0:
            moves[id(env)] = plan(env.scenario, env.session)
        actions: list[Action] = []
        for action in moves[id(env)]:
            is_look = action.kind is ActionKind.WAIT  # the plan then looks at the windows
            actions += env.dialect.waits(action)[:_MAX_WAITS] if is_look else [action]
            if is_look or len(actions) >= MAX_ACTIONS - _MAX_WAITS:
                break
        done = Action(kind=ActionKind.TERMINATE, status=Status.SUCCESS)
        return str(env.dialect.write(actions or [done]))

    return reply


def nothing() -> Policy:
    """Return a policy that says at once that the task is done."""

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped
        done = Action(kind=ActionKind.TERMINATE, status=Status.SUCCESS)
        return str(env.dialect.write([done]))

    return reply
