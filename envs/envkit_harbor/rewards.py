"""One reward of the numbers that a verifier wrote.

Harbor itself reads the reward files (`harbor/verifier/verifier.py`), in the worker: `reward.json`
before `reward.txt`, and one that is broken is an error even if the other is good. It accepts any
dictionary of numbers, also an empty one; an episode needs one number.
"""

from collections.abc import Mapping
from typing import Final

from envkit.grading import UngradedError, finite_reward

_KEY: Final = "reward"
"""Where Harbor puts the number of `reward.txt`."""
_SHOWN: Final = 8


def reward_of(rewards: Mapping[str, float], key: str | None) -> float:
    """Return the reward of an episode.

    Args:
        rewards: What Harbor read.
        key: Its key; None takes "reward", or the only key.

    Raises:
        UngradedError: There is no such number, or it is not finite.
    """
    wanted = _KEY if key is None else key
    if wanted not in rewards and key is None and len(rewards) == 1:
        (wanted,) = rewards
    if wanted not in rewards:
        raise UngradedError(
            f"the verifier must give a number under {wanted!r}, got the keys "
            f"{sorted(rewards)[:_SHOWN]}; name another key as reward_key="
        )
    return finite_reward(rewards[wanted])
