"""What calibration learned about a template: one rule per observation role, and the rest."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from envkit.tokens.shape import TailShape

ObservationRole = Literal["user", "tool"]


class Dependency(StrEnum):
    """What the ids after an observation depend on, besides the observation."""

    TOOLS = "tools"
    """The template repeats or counts the tool schemas behind the last reply."""
    SYSTEM = "system"
    """The template moves the system prompt, or a switch in it, behind the last reply."""
    HISTORY = "history"
    """Earlier turns change what follows: numbered or flagged tool rounds. Work is O(history)."""
    CALL_NAME = "call name"
    """The called tool's name is written with its result."""
    CALL_ID = "call id"
    """The call's id is written with its result, or compared with the result's."""
    IMAGES = "images"
    """Pictures are numbered through the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How the stand-in for the model's reply is written so that the template renders it."""

    content: Literal["empty", "absent", "mark"]
    arguments: Literal["object", "text"] = "object"
    calls: Literal["all", "one", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRule:
    """How observations of one role follow a reply."""

    role: ObservationRole
    variant: Variant
    closer: str
    """The end-of-turn token as the template writes it in history."""
    closer_id: int
    closer_is_stop: bool
    """False: the engine never samples it, so the codec always adds it or another stop stands in."""
    stand_in: str = ""
    """The stop token that ends a last reply where history has the closer (gpt-oss)."""
    opener: bool = False
    """Nothing closes a reply: the next role's token ends it, and the model samples that (GLM)."""
    prefix: str = ""
    """Text between content and closer, other than spaces; added when a reply was cut short."""
    depends: frozenset[Dependency] = frozenset()
    shape: TailShape | None = None
    """The proven short way to write a single plain observation; None takes the template."""
    picture_shape: TailShape | None = None
    """The same for one picture with a text behind it, whose content is the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearity:
    """What a full render keeps of earlier replies; True where it was proven on ids."""

    plain_then_user: bool = True
    thinking_then_user: bool = True
    plain_then_tool: bool = True
    thinking_then_tool: bool = True
    thinking_tool_then_user: bool = True
    text_beside_call: bool = True
    edge_spaces: bool = True

    @property
    def rewrites(self) -> bool:
        """Whether a full render of some ordinary conversation differs from the ledger."""
        return not (
            self.plain_then_user
            and self.thinking_then_user
            and self.plain_then_tool
            and self.thinking_then_tool
            and self.thinking_tool_then_user
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSyntax:
    """How a template writes a picture."""

    placeholder: str
    placeholder_id: int
    numbered: bool
    """Whether earlier pictures change the text of a later one (add_vision_id)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentForms:
    """Which kinds of message content the template renders."""

    strings: bool
    parts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything known about one (template, tokenizer, variables, tools, stop ids)."""

    rules: Mapping[str, RoleRule]
    refusals: Mapping[str, str]
    """Role to reason, for roles without a rule."""
    forms: ContentForms
    generation_prompt: str
    linearity: Linearity
    images: ImageSyntax | None
    image_roles: tuple[str, ...]
    """Roles in which the template renders pictures; the codec accepts them in `user` only."""
    groups_tool_results: bool
    renders_calls: bool
    stop_ids: tuple[int, ...]
    """As given, and a proven closer that was not among them."""
    verified: int
    """Canned conversations on which the delta equalled the tail of a full render, on ids."""
    notes: tuple[str, ...]
