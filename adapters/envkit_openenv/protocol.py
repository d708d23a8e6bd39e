"""Strictly parse an OpenEnv server's WebSocket messages.

The contract (openenv 0.10.0, openenv/core/env_server/http_server.py and serialization.py): one
connection to `/ws` is one session with its own environment. `{"type": "reset" | "step", "data":
{...}}` is answered by `{"type": "observation", "data": {"observation", "reward", "done"}}`,
`{"type": "state"}` by `{"type": "state", "data"}`, and any failure by `{"type": "error", "data":
{"message", "code"}}`. An observation's `metadata`, meant for programs and often empty, is inside it
and, unless empty, next to it; openenv-core 0.3 sent none.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit import fast_json
from envkit.errors import EnvFault, FaultKind

_SHOWN: Final = 300
_KINDS: Final = {
    "CAPACITY_REACHED": FaultKind.TRANSIENT,
    "SESSION_ERROR": FaultKind.CRASHED,
}
"""Fault kinds of session errors; with any other code the same call would fail again."""
_FAULT: Final = re.compile(r"envkit fault kind=(\w+) retryable=(True|False): (.*)", re.DOTALL)


class InvalidAction(Exception):  # an answer for the model, not a failure
    """The server rejected an action as malformed and applied nothing; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswer:
    """The answer to a reset or a step."""

    observation: dict[str, Any]
    """Without its `metadata`."""
    reward: float
    """0.0 if the server gave none."""
    done: bool


def read_message(raw: str) -> dict[str, Any]:
    """Return the data of an answer, unless it is an error.

    Raises:
        InvalidAction: The server refused the action's form.
        EnvFault: It failed, or the answer is not the contract's.
    """
    try:
        found: object = fast_json.loads_large(raw)
    except (ValueError, RecursionError) as error:
        raise _garbage(f"JSON, got {raw[:80]!r}") from error
    message = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    data = message.get("data")
    if not isinstance(message.get("type"), str) or not isinstance(data, dict):
        raise _garbage(f"{{'type', 'data'}}, got {raw[:80]!r}")
    if message["type"] == "error":
        _raise_error(cast("dict[str, Any]", data))
    return cast("dict[str, Any]", data)


def read_outcome(data: dict[str, Any]) -> StepAnswer:
    """Return the outcome of a reset or a step.

    Raises:
        EnvFault: The answer is not the contract's, or its reward is not a number.
    """
    observation, reward, done = data.get("observation"), data.get("reward"), data.get("done")
    if not isinstance(observation, dict) or not isinstance(done, bool):
        raise _garbage(f"an object 'observation' and a bool 'done', got {data!r:.200}")
    if reward is not None and not isinstance(reward, int | float):
        raise _garbage(f"a number or null as 'reward', got {reward!r:.80}")
    try:
        value = 0.0 if reward is None else float(reward)
    except OverflowError:  # an integer beyond the range of a float
        value = math.inf
    if not math.isfinite(value):
        raise EnvFault(
            f"the OpenEnv server must give a finite reward, got {reward!r:.80}",
            kind=FaultKind.GRADER,
        )
    shown = {
        key: entry
        for key, entry in cast("dict[str, Any]", observation).items()
        if key != "metadata"
    }
    return StepAnswer(observation=shown, reward=value, done=done)


def write_fault(fault: EnvFault) -> str:
    """Return a fault as the message of a server's error."""
    return f"envkit fault kind={fault.kind.value} retryable={fault.retryable}: {fault}"


def _raise_error(data: dict[str, Any]) -> None:
    code, text = str(data.get("code", "UNKNOWN")), str(data.get("message", ""))
    if code == "VALIDATION_ERROR":
        raise InvalidAction(_validation(data))
    told = _FAULT.fullmatch(text)
    if told is not None and told[1] in [kind.value for kind in FaultKind]:
        raise EnvFault(told[3][:_SHOWN], kind=FaultKind(told[1]), retryable=told[2] == "True")
    raise EnvFault(
        f"the OpenEnv server answered {code}: {text[:_SHOWN]!r}",
        kind=_KINDS.get(code, FaultKind.PERMANENT),
    )


def _validation(data: dict[str, Any]) -> str:
    """Return pydantic's errors in a sentence."""
    errors: object = data.get("errors")
    told: list[str] = []
    for error in cast("list[object]", errors)[:4] if isinstance(errors, list) else []:
        if isinstance(error, dict):
            fields = cast("dict[str, Any]", error)
            place: object = fields.get("loc")
            steps = cast("list[object]", place) if isinstance(place, list) else []
            told.append(f"{'.'.join(map(str, steps)) or 'it'}: {fields.get('msg')}"[:_SHOWN])
    return "; ".join(told) or str(data.get("message", "the action is not valid"))[:_SHOWN]


def _garbage(rule: str) -> EnvFault:
    return EnvFault(f"the OpenEnv server must answer with {rule}", kind=FaultKind.PERMANENT)
