"""Convert observations of a server to turns."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from envkit.env import Turn
from envkit.errors import EnvFault, FaultKind
from envkit.images import Image
from envkit_openenv.images import decode_image, show_observation
from envkit_openenv.protocol import Outcome

_LOST: Final = "transport_error"
"""ToolErrorTypes of unreachable tools; the model sees the others."""
_SHOWN: Final = 1000


@dataclass(slots=True, kw_only=True)
class Gathered:
    """Results of one reply's actions so far."""

    texts: list[str] = field(default_factory=list[str])
    images: list[Image] = field(default_factory=list[Image])
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    tool_error: str | None = None

    def add(self, text: str, images: Sequence[Image], outcome: Outcome) -> None:
        """Add the outcome of an action."""
        self.texts.append(_renumbered(text, len(self.images), len(images)))
        self.images += images
        self.reward += outcome.reward
        self.truncated = outcome.done and outcome.observation.get("truncated") is True
        self.done = outcome.done and not self.truncated


def show_outcome(
    outcome: Outcome, *, image_fields: Sequence[str]
) -> tuple[str, list[Image], str | None]:
    """Return text, images and a tool's error from any observation.

    Raises:
        EnvFault: An image cannot be read, or a tool was not reached.
    """
    observation = outcome.observation
    if "tool_name" not in observation or not {"result", "error"} & set(observation):
        text, images = show_observation(observation, image_fields=image_fields)
        return text, images, None
    error: object = observation.get("error")
    if isinstance(error, dict):
        told = cast("dict[str, Any]", error)
        what = f"{observation['tool_name']}: {told.get('message')}"[:_SHOWN]
        if told.get("error_type") == _LOST:
            raise EnvFault(f"the OpenEnv server lost its tool {what}", kind=FaultKind.TRANSIENT)
        return f"Error: {what}", [], what
    return _show_result(observation.get("result"))


def envkit_turn(outcome: Outcome) -> Turn:
    """Return the turn that a served environment of envkit returned.

    Raises:
        EnvFault: The observation has other fields.
    """
    observation = outcome.observation
    try:
        images = [decode_image(uri) for uri in observation["images"]]
        return Turn(
            observation["text"],
            images=images,
            role=observation["role"],
            reward=outcome.reward,
            done=bool(observation["terminated"]),
            info=observation["info"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise EnvFault(
            f"the OpenEnv server must answer with an envkit observation: {error!r:.300}",
            kind=FaultKind.PERMANENT,
        ) from error


def _show_result(result: Any) -> tuple[str, list[Image], str | None]:  # noqa: ANN401  # any JSON
    """Return an MCP result: its content's texts and images, or else its JSON."""
    fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    content: object = fields.get("content")
    if not isinstance(content, list):
        shown = {"result": result} if isinstance(result, str | list | dict) else {}
        text, images = show_observation(shown) if shown else (json.dumps(result), [])
        return text, images, None
    texts: list[str] = []
    images = []
    for part in cast("list[Any]", content):
        if not isinstance(part, dict):
            continue
        found = cast("dict[str, Any]", part)
        if found.get("type") == "image" and isinstance(found.get("data"), str):
            images.append(decode_image(found["data"]))
            texts.append(f"[image {len(images)}]")
        elif isinstance(found.get("text"), str):
            texts.append(found["text"])
        else:
            texts.append(json.dumps(found, ensure_ascii=False))
    text = "\n".join(texts)
    return text, images, text[:_SHOWN] if fields.get("is_error") is True else None


def _renumbered(text: str, before: int, count: int) -> str:
    """Renumber image marks to follow those of earlier results."""
    for number in range(count if before else 0, 0, -1):
        text = text.replace(f"[image {number}]", f"[image {number + before}]")
    return text
