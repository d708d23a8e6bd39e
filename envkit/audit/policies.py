"""Policies that solve nothing: what they earn is what an environment gives away."""

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.audit.hooks import AuditHooks
from envkit.env import Env
from envkit.messages import Message
from envkit.tasks import Task
from envkit.tools import ToolSpec
from envkit.turns import Step

CONSTANTS: Final = ("1", "yes")
_LONGEST_COPY: Final = 8000
"""Characters of a reply that repeats what was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a trivial policy may look at."""

    env: Env
    task: Task
    turn: int
    texts: Sequence[str]
    """The observations so far; the first is the prompt."""
    messages: Sequence[Message]
    """The whole conversation."""
    steps: Sequence[Step]
    seed: int
    """The episode's own."""
    rng: random.Random
    """Goes on through the episode."""


Reply = Callable[[Moment], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrivialPolicy:
    """A policy by name."""

    name: str
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplayed:
    """A policy that cannot be played here."""

    name: str
    reason: str


def trivial_policies(
    env: Env, hooks: AuditHooks, frequent: Sequence[str] | None
) -> tuple[list[TrivialPolicy], list[Unplayed]]:
    """Return the policies that suit an environment, and those that do not, each with the reason.

    Args:
        env: After a reset, so that tools which come with a task are there.
        hooks: Those of the environment.
        frequent: The oracle's most frequent reply by turn, on other tasks; None without an oracle.
    """
    found: dict[str, Reply | str] = {"empty reply": lambda _: ""}
    for constant in CONSTANTS:
        found[f"constant {constant!r}"] = _constant(hooks.reply(constant))
    found |= {
        "most frequent reply": "it has no oracle to learn it from"
        if frequent is None
        else _by_turn(frequent),
        "copies the prompt": lambda moment: moment.texts[0][:_LONGEST_COPY],
        "answers with the prompt": "no hook 'answer'"
        if hooks.answer is None
        else lambda moment: hooks.reply(moment.texts[0][:_LONGEST_COPY]),
        "repeats the last observation": lambda moment: moment.texts[-1][:_LONGEST_COPY],
        "calls every tool at once": _calls_all if env.tools else "it has no tools",
        "calls one tool a turn": _calls_one if env.tools else "it has no tools",
        **_guesses(hooks),
        "closed book": "no hook 'closed_book'"
        if hooks.closed_book is None
        else _closed_book(hooks, hooks.closed_book),
    }
    policies = [TrivialPolicy(name=n, reply=r) for n, r in found.items() if not isinstance(r, str)]
    unplayed = [Unplayed(name=n, reason=r) for n, r in found.items() if isinstance(r, str)]
    return policies, unplayed


def _constant(text: str) -> Reply:
    return lambda _: text


def _by_turn(replies: Sequence[str]) -> Reply:
    return lambda moment: replies[min(moment.turn, len(replies) - 1)]


def _closed_book(hooks: AuditHooks, answerer: Callable[[Task], str]) -> Reply:
    return lambda moment: hooks.reply(answerer(moment.task))


def _guesses(hooks: AuditHooks) -> dict[str, Reply | str]:
    choices, ask, heard = hooks.choices, hooks.ask, hooks.heard_right
    if choices is None:
        why = "no hook 'choices'"
        return {"random choice": why, "every choice at once": why, "guesses with the scorer": why}

    def random_choice(moment: Moment) -> str:
        return hooks.reply(moment.rng.choice(list(choices(moment.task)) or [""]))

    def every_choice(moment: Moment) -> str:
        return "\n".join(hooks.reply(choice) for choice in choices(moment.task))

    def guess(moment: Moment) -> str:
        assert ask is not None  # else it is not offered
        assert heard is not None
        options = list(choices(moment.task)) or [""]
        right = next((n for n, step in enumerate(moment.steps) if heard(step)), None)
        if right is not None:
            return hooks.reply(options[min(right, len(options) - 1)])
        option = options[min(moment.turn, len(options) - 1)]
        is_last = moment.turn + 1 >= min(moment.env.max_turns, len(options))
        return hooks.reply(option) if is_last else ask(option)

    return {
        "random choice": random_choice,
        "every choice at once": every_choice,
        "guesses with the scorer": guess if ask is not None else "no hook 'ask'",
    }


def _calls_all(moment: Moment) -> str:
    return "\n".join(_call(spec) for spec in moment.env.tools)


def _calls_one(moment: Moment) -> str:
    tools = moment.env.tools
    return _call(tools[moment.turn % len(tools)])


def _call(spec: ToolSpec) -> str:
    call = {"name": spec.name, "arguments": fill(spec.parameters)}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def fill(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON data
    """Return some value that a JSON Schema takes."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return fill(schema[key][0])
    kind: object = schema.get("type", "object")
    if isinstance(kind, list):
        kind = cast("list[object]", kind)[0]
    if kind == "object":
        properties: Mapping[str, Any] = schema.get("properties", {})
        return {name: fill(properties.get(name, {})) for name in schema.get("required", ())}
    if kind == "array":
        count = int(schema.get("minItems", 1))
        listed: Sequence[Mapping[str, Any]] = schema.get("prefixItems", ())
        items = itertools.chain(listed, itertools.repeat(schema.get("items", {"type": "string"})))
        return [fill(item) for item in itertools.islice(items, count)]
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": True, "null": None}.get(str(kind), "1")
