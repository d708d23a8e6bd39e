"""What passes between an environment and its caller: turns, observations, steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from envkit.errors import ContractError
from envkit.images import Image

ObservationRole = Literal["user", "tool"]


class Observation(TypedDict):
    """What the model reads next. The three keys are always there."""

    text: str
    images: tuple[Image, ...]
    role: ObservationRole


class Reset(NamedTuple):
    """The start of an episode; unpacks as Gymnasium's two values."""

    observation: Observation
    info: dict[str, Any]


class Step(NamedTuple):
    """One turn's outcome; unpacks as Gymnasium's five values."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What an author's hook returns. A field of the wrong type raises `ContractError`."""

    text: str
    images: Sequence[Image] = ()
    role: ObservationRole = "user"
    """"tool" for a tool's answer. It becomes a user message where the model's chat template does
    not render tool messages, or drops their images."""
    reward: float = 0.0
    done: bool = False
    """True when the task is over (termination). Truncation at `max_turns` is the base's work."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Deterministic JSON data: no clock, no random identifier, no latency. The base adds `turn`,
    and `tool_call` (None), `parse_error` (None) and `reward_terms` ({}) where they are missing."""

    def __post_init__(self) -> None:
        _check_turn(self.text, self.images, self.role, self.reward, self.done, self.info)


class StepKey(NamedTuple):
    """Identifies one attempt of one step, for backends that must not apply a step twice."""

    episode_id: str
    """With its own suffix after every `resume`, whose replays are not repetitions."""
    turn: int
    attempt: int
    """Counts the retries of the episode so far. After each, the state was put back, so a later
    attempt may carry an earlier turn again: a replay."""


def observe(turn: object, hook: str) -> Observation:
    """Return the observation of what a hook returned.

    Raises:
        ContractError: It is no `Turn`.
    """
    if not isinstance(turn, Turn):
        raise ContractError(
            f"{hook} must return envkit.Turn(text, images=(), ...), got {type(turn).__name__}"
        )
    return {"text": turn.text, "images": tuple(turn.images), "role": turn.role}


def _check_turn(
    text: object, images: object, role: object, reward: object, done: object, info: object
) -> None:
    if not isinstance(text, str):
        raise _refusal("text must be a str", text)
    if isinstance(images, str) or not isinstance(images, Sequence):
        raise _refusal("images must be a tuple or list of envkit.Image", images)
    for image in images:  # pyright: ignore[reportUnknownVariableType]  # checked right here
        if not isinstance(image, Image):
            raise _refusal("images must hold envkit.Image, such as Image.from_pil(...)", image)  # pyright: ignore[reportUnknownArgumentType]  # only shown
    if role not in ("user", "tool"):
        raise _refusal("role must be 'user' or 'tool'", role)
    # A NaN reward would poison the advantages of a whole group without a trace.
    if not _is_finite(reward):
        raise _refusal("reward must be a finite number", reward)
    if not isinstance(done, bool | np.bool_):
        raise _refusal("done must be a bool", done)
    if not isinstance(info, Mapping):
        raise _refusal("info must be a mapping of JSON data", info)


def _is_finite(reward: object) -> bool:
    try:
        return isinstance(reward, Real | np.bool_) and math.isfinite(float(reward))  # pyright: ignore[reportUnknownArgumentType]  # numpy's bool is generic
    except OverflowError:  # an integer beyond the range of a float
        return False


def _refusal(rule: str, value: object) -> ContractError:
    return ContractError(f"Turn.{rule}, got {type(value).__name__}: {repr(value)[:80]}")
