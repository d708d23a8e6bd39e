"""Scripted policies that know the task, for tests, demos and varied rewards."""

import json
import random
from typing import Any, Final

from envkit import ranges
from envkit.env import Policy, PolicyContext
from envkit_search.protocol import Protocol

_MALFORMED: Final = (
    "I am sure that I know this one.",
    "<think>Let me look it up.</think> <search></search>",
    '<tool_call>{"name": "search", "arguments": {"query": </tool_call>',
    "<information>The answer stands here.</information>",
)
_WRONG: Final = "nobody knows"


def oracle() -> Policy:
    """Return a policy that searches the titles of the pages in turn, then answers.

    If there are too few turns, it answers on the last one.
    """

    def reply(context: PolicyContext) -> str:
        titles: list[str] = context.task.get("gold_titles") or []
        if context.turn < len(titles) and not _is_last(context):
            return _search(context, titles[context.turn])
        return _answer(context, context.task["answers"][0])

    return reply


def noisy_oracle(p: float = 0.5, *, malformed: float = 0.1, skip: float = 0.3) -> Policy:
    """Return a policy that is right in a fraction of episodes and makes mistakes on the way.

    It depends only on the context's seed and turn, so an episode can be replayed.

    Args:
        p: Probability that an episode ends with the right answer.
        malformed: Probability of a reply that is neither a search nor an answer, before the last
            turn.
        skip: Probability of answering before every page was searched.

    Raises:
        ConfigurationError: A probability is not within 0 to 1.
    """
    ranges.within(0, 1, p=p, malformed=malformed, skip=skip)

    def reply(context: PolicyContext) -> str:
        episode = random.Random(f"search noisy oracle {context.seed}")
        answer = context.task["answers"][0] if episode.random() < p else _WRONG
        titles: list[str] = context.task.get("gold_titles") or []
        wanted = titles[: 1 if episode.random() < skip else None]
        rng = random.Random(f"search noisy oracle {context.seed} {context.turn}")
        if _is_last(context):
            return _answer(context, answer)
        if rng.random() < malformed:
            return rng.choice(_MALFORMED)
        if context.turn < len(wanted):
            return _search(context, wanted[context.turn])
        return _answer(context, answer)

    return reply


def _is_last(context: PolicyContext) -> bool:
    env: Any = context.env.unwrapped  # a wrapper hides the turn limit
    return context.turn + 1 >= env.max_turns


def _speaks_tags(context: PolicyContext) -> bool:
    env: Any = context.env.unwrapped
    return env.protocol is Protocol.TAGS


def _search(context: PolicyContext, title: str) -> str:
    if _speaks_tags(context):
        return f"<think>I need the page of {title}.</think>\n<search>{title}</search>"
    call = {"name": "search", "arguments": {"query": title}}
    return f"I need the page of {title}.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _answer(context: PolicyContext, answer: str) -> str:
    if _speaks_tags(context):
        return f"<think>The pages say it.</think>\n<answer>{answer}</answer>"
    return f"The pages say it.\n<answer>{answer}</answer>"
