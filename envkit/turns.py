"""Turns, observations and steps exchanged by an environment and its caller."""

import math
from collections.abc import AsyncIterable, Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, TypedDict, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

from envkit.errors import ContractError, ImageError
from envkit.images import Image
from envkit.reply import CUT, CUT_NOTICE

ObservationRole = Literal["user", "tool"]


class Observation(TypedDict):
    """The model's next input. All three keys are always present."""

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


@dataclass(frozen=True, slots=True, init=False)
class Turn:
    """The return value of an author's hook. A field of the wrong type raises `ContractError`."""

    text: str
    images: tuple[Image, ...]
    """Given as a sequence of `Image`, Pillow images, or uint8 arrays of shape (height, width) or
    (height, width, 3 or 4)."""
    role: ObservationRole
    """"tool" for a tool's result. It becomes a user message if the model's chat template does not
    render tool messages, or drops their images."""
    reward: float
    done: bool
    """True if the task is over (termination). The base class truncates at `max_turns`."""
    info: Mapping[str, Any]
    """Deterministic JSON data: no times, random ids or latencies. The base class adds `turn`, and
    the defaults of `tool_call` (None), `parse_error` (None) and `reward_terms` ({})."""

    def __init__(
        self,
        text: str,
        images: Sequence[Image | PilImage.Image | NDArray[np.uint8]] = (),
        role: ObservationRole = "user",
        reward: float = 0.0,
        done: bool = False,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        info = {} if info is None else info
        _check_turn(text, images, role, reward, done, info)
        taken = tuple(map(_image, images))
        fields = {"text": text, "images": taken, "role": role, "reward": reward, "done": done}
        for name, value in {**fields, "info": info}.items():
            object.__setattr__(self, name, value)  # the class is frozen


class StepKey(NamedTuple):
    """Identifies one attempt of one step, for backends that must not apply a step twice."""

    episode_id: str
    """Has a new suffix after every `resume`, so its replays are not taken for repeated calls."""
    turn: int
    attempt: int
    """How often the episode's state was restored, or the episode started over, so far: for a retry
    or for another reply. A later attempt may replay an earlier turn."""


def observe(turn: object, hook: str) -> Observation:
    """Return the observation in a hook's return value.

    Raises:
        ContractError: The value is not a `Turn`.
    """
    if isinstance(turn, Awaitable | AsyncIterable):
        if isinstance(turn, Coroutine):
            turn.close()  # otherwise Python warns that it was never awaited
        kind = type(cast(object, turn)).__name__
        raise ContractError(
            f"{hook} must return envkit.Turn(text, images=(), ...), got a {kind}: derive from "
            "envkit.AsyncEnv, whose hooks on_areset and on_aturn may await"
        )
    if not isinstance(turn, Turn):
        raise ContractError(
            f"{hook} must return envkit.Turn(text, images=(), ...), got {type(turn).__name__}"
        )
    return {"text": turn.text, "images": turn.images, "role": turn.role}


def after_cut(turn: Turn) -> Turn:
    """Return the turn after a reply that was cut, which says so to the model and in its info."""
    text = turn.text if CUT_NOTICE in turn.text else f"{CUT_NOTICE}\n\n{turn.text}".rstrip()
    return Turn(
        text,
        images=turn.images,
        role=turn.role,
        reward=turn.reward,
        done=turn.done,
        info={**turn.info, "parse_error": CUT},
    )


def _check_turn(
    text: object, images: object, role: object, reward: object, done: object, info: object
) -> None:
    if not isinstance(text, str):
        raise _refusal("text must be a str", text)
    if isinstance(images, str) or not isinstance(images, Sequence):
        raise _refusal("images must be a tuple or list of images, such as [image]", images)
    if role not in ("user", "tool"):
        raise _refusal("role must be 'user' or 'tool'", role)
    # A NaN reward would silently poison the advantages of a whole group.
    if not _is_finite(reward):
        raise _refusal("reward must be a finite number", reward)
    if not isinstance(done, bool | np.bool_):
        raise _refusal("done must be a bool", done)
    if not isinstance(info, Mapping):
        raise _refusal("info must be a mapping of JSON data", info)


def _image(given: object) -> Image:
    if isinstance(given, Image):
        return given
    try:
        if isinstance(given, PilImage.Image):
            return Image.from_pil(given)
        if isinstance(given, np.ndarray):
            return Image.from_array(cast("NDArray[np.uint8]", given))
    except ImageError as error:
        raise ContractError(f"Turn.images: {error}") from error
    raise _refusal("images must hold envkit.Image, Pillow images or uint8 arrays", given)


def _is_finite(reward: object) -> bool:
    try:
        return isinstance(reward, Real | np.bool_) and math.isfinite(float(reward))  # pyright: ignore[reportUnknownArgumentType]  # numpy's bool is generic
    except OverflowError:  # an integer beyond the range of a float
        return False


def _refusal(rule: str, value: object) -> ContractError:
    return ContractError(f"Turn.{rule}, got {type(value).__name__}: {repr(value)[:80]}")
