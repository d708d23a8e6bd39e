"""Rewards of an agent's episode: each goes to a turn, in the order of the agent's calls."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envkit.rollout.record import EpisodeRecord
from envkit.success import OWN_REWARD
from envkit.trajectory.trajectory import TurnRecord
from envkit_gateway.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """A reward that was given while the agent ran."""

    turn: Turn | None
    """The latest call that had a reply then; None before the first one."""
    reward: float
    own: float
    """The environment's own part of it, without wrappers and without the agent's rewards."""


def is_finite(final: float, earlier: Sequence[Credit]) -> bool:
    """Return whether rewards and all their sums are finite."""
    return math.isfinite(abs(final) + sum(abs(one.reward) for one in earlier))


def credit_turns(
    record: EpisodeRecord,
    numbers: Sequence[int],
    *,
    final: float,
    earlier: Sequence[Credit],
    info: Mapping[str, Any],
) -> None:
    """Put an episode's rewards on the turns of its record.

    A reward goes to the latest trained call up to its own, or to the first trained one; if nothing
    is trained, to any call, so that the episode's reward is still their sum.

    Args:
        record: The record, with every turn.
        numbers: The number of each turn's request in the session, in the order of the record.
        final: The reward of the whole episode, for the last call.
        earlier: Rewards of calls before the end.
        info: Info of the environment's last step, for the last call.
    """
    order = call_order(numbers)
    places = [n for n in order if record.turns[n].purpose is None] or order
    calls = [numbers[n] for n in places]
    rewards, owns = [0.0] * len(numbers), [0.0] * len(numbers)
    for one in earlier:
        known = -1 if one.turn is None else one.turn.number
        place = places[max(0, bisect_right(calls, known) - 1)]
        rewards[place] += one.reward
        owns[place] += one.own
    for place in places[-1:]:
        rewards[place] += final
        owns[place] += final
        others = {key: value for key, value in info.items() if key != OWN_REWARD}
        turn = record.turns[place]
        record.turns[place] = replace(turn, info={**turn.info, **others})
    for n, turn in enumerate(record.turns):
        record.turns[n] = _rewarded(turn, rewards[n], owns[n])


def call_order(numbers: Sequence[int]) -> list[int]:
    """Return the indices of turns in the order of their calls."""
    return sorted(range(len(numbers)), key=numbers.__getitem__)


def number_calls(record: EpisodeRecord, numbers: Sequence[int]) -> None:
    """Record the order of calls, if the turns stand in another one."""
    order = call_order(numbers)
    if order != sorted(order):
        for call, n in enumerate(order):
            record.turns[n] = replace(record.turns[n], call=call)


def _rewarded(turn: TurnRecord, reward: float, own: float) -> TurnRecord:
    info = turn.info if own == reward else {**turn.info, OWN_REWARD: own}
    return replace(turn, reward=reward, info=info)
