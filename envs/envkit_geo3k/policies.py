"""Scripted policies that know the answer, for tests, demos and varied rewards."""

import json
import random
from typing import Any, Final

from envkit import ranges
from envkit.env import Policy, PolicyContext
from envkit_geo3k.grading import grade

_MALFORMED: Final = (
    '<tool_call>{"name": "calc_score", "arguments": {"answer": </tool_call>',
    '<tool_call>{"name": "measure", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "calc_score", "arguments": {"guess": "1"}}</tool_call>',
    "The figure shows it clearly, so I am done.",
)


def oracle() -> Policy:
    """Return a policy that scores the right answer and then boxes it.

    With a single turn it boxes immediately.
    """

    def reply(context: PolicyContext) -> str:
        answer = context.task["answer"]
        if context.turn == 0 and not _is_last(context):
            return _score(answer, "I work it out from the figure and check the result.")
        return _box(answer)

    return reply


def noisy_oracle(
    p: float = 0.5, *, malformed: float = 0.1, zoom: float = 0.4, check: float = 0.65
) -> Policy:
    """Return a policy that is right in a fraction of episodes and makes mistakes on the way.

    It depends only on the context's seed and turn, so an episode can be replayed.

    Args:
        p: Probability that an episode ends with the right answer.
        malformed: Probability of a reply that is not a valid call or answer, before the last turn.
        zoom: Probability of a zoom on the first turn.
        check: Probability of a scored attempt before the last turn.

    Raises:
        ConfigurationError: A probability is not within 0 to 1.
    """
    ranges.within(0, 1, p=p, malformed=malformed, zoom=zoom, check=check)

    def reply(context: PolicyContext) -> str:
        episode = random.Random(f"geo3k noisy oracle {context.seed}")
        is_solved = episode.random() < p
        rng = random.Random(f"geo3k noisy oracle {context.seed} {context.turn}")
        gold = context.task["answer"]
        final = gold if is_solved else _wrong(gold, episode)
        if _is_last(context):
            return _box(final)
        if rng.random() < malformed:
            return rng.choice(_MALFORMED)
        if context.turn == 0 and rng.random() < zoom and _has_zoom(context):
            return _zoom(rng)
        if rng.random() < check:
            return _score(_wrong(gold, rng) if rng.random() < 0.5 else final, "Let me check this.")
        return _box(final)

    return reply


def _is_last(context: PolicyContext) -> bool:
    env: Any = context.env.unwrapped  # a wrapper hides the turn limit
    return context.turn + 1 >= env.max_turns


def _has_zoom(context: PolicyContext) -> bool:
    env: Any = context.env.unwrapped
    return any(spec.name == "zoom" for spec in env.tools)


def _wrong(gold: str, rng: random.Random) -> str:
    while True:
        candidate = str(rng.randint(2, 200))
        if not grade(candidate, gold).score:
            return candidate


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _score(answer: str, thought: str) -> str:
    return f"{thought}\n{_call('calc_score', {'answer': answer})}"


def _zoom(rng: random.Random) -> str:
    left, top = (rng.choice((0.0, 0.25, 0.5)) for _ in range(2))
    region = [left, top, left + 0.5, top + 0.5]
    return f"I look at a part of the figure.\n{_call('zoom', {'region': region})}"


def _box(answer: str) -> str:
    return f"The answer is \\boxed{{{answer}}}."
