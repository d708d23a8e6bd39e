"""Read the reward that a test script in Harbor's format wrote.

Harbor's Verifier reads `reward.json` if it is there, else `reward.txt`, and ignores the script's
exit status (harbor 0.26, `harbor/verifier/verifier.py`). Unlike Harbor, a number alone in
`reward.json` is a reward, and an object must say which of its numbers is the reward.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from envkit.grading import UngradedError, finite_reward
from envkit_terminal.grader_sandbox import REWARD_FOLDER
from envkit_terminal.session import TerminalSession

_JSON, _TEXT = "reward.json", "reward.txt"
_KEY: Final = "reward"


def read_reward(
    session: TerminalSession, *, key: str | None, within: tuple[float, float] | None
) -> float:
    """End all processes and return the reward.

    Args:
        session: Where the script has ended.
        key: The key of the reward in an object, besides "reward"; None without another.
        within: The range that the task declares; None means any finite number.

    Raises:
        UngradedError: There is no reward.
        EnvFault: The sandbox is gone.
    """
    found, text = session.read(REWARD_FOLDER, _JSON, _TEXT)
    if found.exists:
        return reward_of(_JSON, found.data, key=key, within=within)
    if text.exists:
        return reward_of(_TEXT, text.data, key=key, within=within)
    raise UngradedError(f"the test script wrote no {REWARD_FOLDER}/{_TEXT} or {_JSON}")


def reward_of(
    name: str, data: bytes | None, *, key: str | None, within: tuple[float, float] | None
) -> float:
    """Return the reward in a file.

    Args:
        name: "reward.json" or "reward.txt".
        data: Its bytes; None if it cannot be read.
        key: As for `read_reward`.
        within: As for `read_reward`.

    Raises:
        UngradedError: It holds no reward.
    """
    if data is None:
        raise UngradedError(f"{name} must be a regular file of at most 1 MiB that can be read")
    try:
        text = data.decode()
        value: Any = _number(json.loads(text), key) if name == _JSON else float(text)
    except (ValueError, RecursionError) as error:
        raise UngradedError(f"the test script wrote {data[:80]!r} to {name}: {error}") from error
    return finite_reward(value, within=within)


def _number(value: object, key: str | None) -> object:
    if not isinstance(value, dict):
        return value
    fields = cast(Mapping[str, object], value)
    for name in (key, _KEY):
        if name is not None and name in fields:
            return fields[name]
    raise ValueError(
        f"an object must have the key {_KEY!r} or one that the task declares as 'reward_key', "
        f"got {sorted(fields)[:8]}"
    )
