"""Solve an environment that publishes its transition table.

Gymnasium's toy environments have `P[state][action] = [(probability, next, reward, terminated)]` and
the current state `s` (gymnasium/envs/toy_text). Value iteration over that table is exact if it is
deterministic.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envkit.errors import ConfigurationError

_DISCOUNT: Final = 0.999
"""Discount below 1, so a detour to the goal is worth more than never reaching it."""
_SWEEPS: Final = 20_000
_CLOSE: Final = 1e-9


def best_actions(table: Any, *, termination_reward: float = 0.0) -> NDArray[np.int64]:  # noqa: ANN401  # a foreign environment
    """Return the best action of every state, of shape (states,).

    Args:
        table: The inner environment with its table.
        termination_reward: Added to a step that terminates.

    Raises:
        ConfigurationError: It publishes no table, the table is not deterministic, or the best play
            from some start does not end with a positive return.
    """
    following, rewards, ends = _read_table(table)
    rewards = rewards + termination_reward * ends
    values = np.zeros(len(following))
    for _ in range(_SWEEPS):
        worth = rewards + _DISCOUNT * (1 - ends) * values[following]
        latest = worth.max(axis=1)
        if np.abs(latest - values).max() < _CLOSE:
            break
        values = latest
    worth = rewards + _DISCOUNT * (1 - ends) * values[following]
    actions = worth.argmax(axis=1)
    for start in np.flatnonzero(np.asarray(table.initial_state_distrib) > 0):
        _check_play(int(start), actions, following, rewards, ends)
    return actions


def _read_table(table: Any) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:  # noqa: ANN401  # as above
    """Return next states, rewards and ends, each of shape (states, actions)."""
    moves = getattr(table, "P", None)
    if not isinstance(moves, dict) or not hasattr(table, "initial_state_distrib"):
        raise ConfigurationError(
            f"{type(table).__name__} has no oracle policy: it publishes no transition table"
        )
    rows: list[list[tuple[int, float, float]]] = []
    for state in range(len(moves)):  # pyright: ignore[reportUnknownArgumentType]  # a foreign table
        row: list[tuple[int, float, float]] = []
        for action in range(len(moves[state])):  # pyright: ignore[reportUnknownArgumentType]  # as above
            outcomes = [found for found in moves[state][action] if found[0] > 0]  # pyright: ignore[reportUnknownVariableType]  # as above
            if len({tuple(found[1:]) for found in outcomes}) != 1:  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # as above
                raise ConfigurationError(
                    f"{type(table).__name__} has no oracle policy: its transitions are random"
                )
            _, following, reward, ended = outcomes[0]  # pyright: ignore[reportUnknownVariableType]  # as above
            row.append((int(following), float(reward), float(ended)))  # pyright: ignore[reportUnknownArgumentType]  # as above
        rows.append(row)
    array = np.array(rows, dtype=np.float64)
    return array[:, :, 0].astype(np.int64), array[:, :, 1], array[:, :, 2]


def _check_play(
    state: int,
    actions: NDArray[np.int64],
    following: NDArray[np.int64],
    rewards: NDArray[np.float64],
    ends: NDArray[np.float64],
) -> None:
    """Reject a table whose best play never ends or earns nothing."""
    total = 0.0
    for _ in range(len(following)):
        action = actions[state]
        total += float(rewards[state, action])
        if ends[state, action]:
            break
        state = int(following[state, action])
    else:
        raise ConfigurationError("it has no oracle policy: no play reaches a terminal state")
    if total <= 0:
        raise ConfigurationError(
            f"it has no oracle policy: the best play earns {total:g}, and an oracle must earn a "
            "positive reward; pass termination_reward to reward the goal"
        )
