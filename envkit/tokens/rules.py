"""Results of calibrating a template: one rule per observation role, and more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, Literal, TypeVar

from envkit.errors import TemplateError
from envkit.tokens.shape import TailShape

ObservationRole = Literal["user", "tool"]


M = TypeVar("M", bound=Mapping[str, Any])


class Dependency(StrEnum):
    """What the ids after an observation depend on, other than the observation."""

    TOOLS = "tools"
    """The template repeats or counts the tool schemas after the last reply."""
    SYSTEM = "system"
    """The template moves the system prompt, or a switch in it, after the last reply."""
    RECENT = "recent turns"
    """The turns since the last user message change what follows. Work is O(these turns)."""
    HISTORY = "history"
    """Earlier turns change what follows: numbered or flagged tool rounds. Work is O(history)."""
    REPLY = "reply form"
    """A reply with structured calls is followed by other text than a plain reply."""
    CALL_NAME = "call name"
    """The called tool's name is written with its result."""
    CALL_ID = "call id"
    """The call's id is written with its result, or compared with the result's."""
    IMAGES = "images"
    """Images are numbered through the conversation."""


CALL_KEYS: Final = {Dependency.CALL_NAME: "name", Dependency.CALL_ID: "tool_call_id"}
CALL_PARTS: Final = frozenset(CALL_KEYS)
CONTEXT_PARTS: Final = frozenset({Dependency.SYSTEM, Dependency.RECENT, Dependency.HISTORY})
"""What needs the conversation's earlier messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How the stand-in for the model's reply is written so that the template renders it."""

    content: Literal["empty", "absent", "mark"]
    arguments: Literal["object", "text"] = "object"
    calls: Literal["all", "one", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRule:
    """How observations of one role follow a reply of one form: plain text, or structured calls."""

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
    """Nothing closes a reply: the next role's token ends it. The model samples that if it is a stop
    token (GLM), else its own stop token, which a full render does not have (Ling)."""
    prefix: str = ""
    """Text between content and closer, other than spaces; added when a reply was cut short."""
    depends: frozenset[Dependency] = frozenset()
    proven: frozenset[str] = frozenset()
    """Forms of replies ("call", "calls", "saycall", ...) and what follows them ("t": a tool
    message, "tu": a user message after it, ...) for which the template rendered a conversation and
    the rule was right; others are refused."""
    takes_any_call_id: bool = True
    """False: tool messages must have an id of nine characters, as for Mistral's models."""
    shape: TailShape | None = None
    """The proven short way to write a single plain observation; None takes the template."""
    image_shape: TailShape | None = None
    """The same for one image with a text after it, whose content is the text."""

    @property
    def replaces_stop(self) -> bool:
        """Whether a full render has another token, or none, where the model samples its stop."""
        return bool(self.stand_in) or (self.opener and not self.closer_is_stop)

    def read(self, history: Sequence[M]) -> Sequence[M]:
        """Return the earlier messages that the rule reads; the reply is the last of them."""
        if Dependency.HISTORY in self.depends:
            return history
        depends = self.depends
        start = len(history) - 1 if depends & (CALL_PARTS | CONTEXT_PARTS) else len(history)
        if Dependency.RECENT in depends:
            start = next((i for i in range(start, -1, -1) if history[i]["role"] == "user"), 0)
        earlier = history[: max(start, 0)] if Dependency.SYSTEM in depends else ()
        return [*(m for m in earlier if m["role"] == "system"), *history[max(start, 0) :]]

    def unproven(self, roles: Sequence[str], reply: Mapping[str, Any] | None) -> str:
        """Return what about an observation or the reply before it was not proven, "" if nothing."""
        for one, other in pairwise(roles):
            if not any(one[0] + other[0] in kind for kind in self.proven):
                return f"a {other} message right after a {one} message"
        calls = reply.get("tool_calls") if reply else None
        if reply is None or not calls:
            return ""
        if len(calls) > 1 and "calls" not in self.proven:
            return f"{self.role} messages after several calls in one reply"
        if reply.get("content") and not self.proven >= {"saycall", "thinkcall"}:
            return f"{self.role} messages after a reply with text beside its call"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearity:
    """What a full render keeps of earlier replies; True if it was proven on ids."""

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
    """How a template writes an image."""

    placeholder: str
    placeholder_id: int
    numbered: bool
    """Whether earlier images change the text of a later one (add_vision_id)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentForms:
    """Which kinds of message content the template renders."""

    strings: bool
    parts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything known about one (template, tokenizer, variables, tools, stop ids)."""

    rules: Mapping[str, RoleRule]
    """By role: what follows a reply in plain text, as the loop records it. Where the template
    refuses a tool message after such a reply, the reply is taken for the call it spells out."""
    refusals: Mapping[str, str]
    """Role to reason, for roles without a rule."""
    after_calls: Mapping[str, RoleRule]
    """By role: what follows a reply whose message carries structured calls."""
    call_refusals: Mapping[str, str]
    """Role to reason, for roles without a rule after structured calls."""
    forms: ContentForms
    generation_prompt: str
    linearity: Linearity
    images: ImageSyntax | None
    image_roles: tuple[str, ...]
    """Roles in which the template renders images."""
    groups_tool_results: bool
    renders_calls: bool
    stop_ids: tuple[int, ...]
    """As given, and a proven closer that was not among them."""
    verified: int
    """Canned conversations on which the delta equalled the tail of a full render, on ids."""
    notes: tuple[str, ...]

    def rule(self, roles: Sequence[str], reply: Mapping[str, Any] | None) -> RoleRule:
        """Return the rule for observations after a reply.

        Args:
            roles: Of the observations.
            reply: The message before them; None if it was not given.

        Raises:
            TemplateError: They are no observation, or the template was not proven exact for them.
        """
        first = roles[0] if roles else None
        others = roles[roles.count("tool") :] if first == "tool" else roles
        if first not in ("user", "tool") or any(role != "user" for role in others):
            raise TemplateError(
                "an observation is user messages, or tool results with user messages after them, "
                f"got roles {list(roles)}"
            )
        makes_calls = bool(reply and reply.get("tool_calls"))
        rule = (self.after_calls if makes_calls else self.rules).get(first)
        if rule is None:
            reason = (self.call_refusals if makes_calls else self.refusals)[first]
            after = " after structured calls" if makes_calls else ""
            raise TemplateError(
                f"{first} observations{after} are refused: {reason}. "
                "Send tool output in a 'user' message instead"
            )
        unproven = rule.unproven(roles, reply)
        if unproven:
            raise TemplateError(
                f"the chat template could not be proven exact for {unproven}: it refuses or "
                "rewrites such conversations. Send the text in one message, and calls one at a time"
            )
        if Dependency.REPLY in rule.depends and reply is None:
            raise TemplateError(
                f"this chat template writes {first} messages after structured calls otherwise than "
                "after plain replies; pass history= with every earlier message"
            )
        return rule
