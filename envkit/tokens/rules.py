"""Results of calibrating a template: one rule per observation role, and more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, Literal, TypeVar

from envkit.errors import TemplateError
from envkit.tokens.digest import Digest
from envkit.tokens.shape import TailShape

ObservationRole = Literal["user", "tool"]


M = TypeVar("M", bound=Mapping[str, Any])


class Dependency(StrEnum):
    """What the ids of an observation's tail depend on, other than the observation."""

    TOOLS = "tools"
    """The template repeats or counts the tool schemas after the last reply."""
    SYSTEM = "system"
    """The template moves the system prompt, or a switch in it, after the last reply."""
    LAST = "last reply"
    """The reply itself changes the text, such as the words next to its call."""
    RECENT = "recent turns"
    """The turns since the last user message change the text."""
    HISTORY = "history"
    """Earlier turns change the text, such as numbered tool rounds."""
    REPLY = "reply form"
    """The text after a reply with structured calls differs from that after a plain reply."""
    CALL_NAME = "call name"
    """The template writes the called tool's name with its result."""
    CALL_ID = "call id"
    """The template writes the call's id with its result, or compares the two ids."""
    IMAGES = "images"
    """Images are numbered through the conversation."""


CALL_KEYS: Final = {Dependency.CALL_NAME: "name", Dependency.CALL_ID: "tool_call_id"}
CALL_PARTS: Final = frozenset(CALL_KEYS)
TURN_PARTS: Final = frozenset({Dependency.LAST, Dependency.RECENT, Dependency.HISTORY})
"""Dependencies on replies; at most one of them in a rule."""
CONTEXT_PARTS: Final = TURN_PARTS | {Dependency.SYSTEM}
"""Dependencies that need the conversation's earlier messages."""
EARLIER_PARTS: Final = CONTEXT_PARTS - {Dependency.LAST}
"""Dependencies on messages before the last reply."""
LATE_SYSTEM: Final = "late system"
"""A proven form: conversations with system messages after the first message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How to write the stand-in for the model's reply so that the template renders it."""

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
    """False: the engine never samples it, so the codec adds it, or another stop replaces it."""
    stand_in: str = ""
    """The stop token that ends a last reply where history has the closer (gpt-oss)."""
    opener: bool = False
    """Nothing closes a reply: the next role's token ends it. The model samples that token if it is
    a stop token (GLM), else its own stop token, which a full render does not have (Ling)."""
    prefix: str = ""
    """Non-blank text between content and closer; added if a reply was cut off."""
    depends: frozenset[Dependency] = frozenset()
    proven: frozenset[str] = frozenset()
    """Forms of replies ("call", "calls", "saycall", ...) and of what follows them ("t": a tool
    message, "tu": a user message after it, ...) for which the rule equalled a full render. Others
    are rejected."""
    takes_any_call_id: bool = True
    """False: tool messages must have an id of nine characters, as for Mistral's models."""
    shape: TailShape | None = None
    """The proven shortcut for a single plain observation; None runs the template."""
    image_shape: TailShape | None = None
    """The same for an image followed by a text, which is the content of the shape."""
    digest: Digest | None = None
    """How to shorten the turns that the rule reads; None reads all of them."""

    @property
    def replaces_stop(self) -> bool:
        """Whether a full render has another token, or none, in place of the sampled stop token."""
        return bool(self.stand_in) or (self.opener and not self.closer_is_stop)

    def within(self, history: Sequence[Mapping[str, Any]]) -> "RoleRule":
        """Return the rule for a conversation: one with a later system message is read as a whole.

        A rule that reads the system prompt would move a later one to the front, where a template
        treats it differently. Other rules are proven for later ones, or read the whole too.
        """
        is_proven = LATE_SYSTEM in self.proven
        if is_proven and not self.depends & EARLIER_PARTS:
            return self
        roles = [entry["role"] for entry in history]
        if "system" not in roles[1:] or (is_proven and Dependency.SYSTEM not in self.depends):
            return self
        return replace(self, depends=self.depends | {Dependency.HISTORY}, digest=None)

    def read(self, history: Sequence[M]) -> Sequence[M]:
        """Return the earlier messages that the rule reads; the reply is the last of them."""
        turns = self._turns(history)
        return turns if self.digest is None else self.digest.shorten(turns)

    def skipped(
        self, history: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]
    ) -> int:
        """Return how many of what the template numbers are in a history but not in what is read."""
        if self.digest is None or self.digest.counted is None:
            return 0
        return self.digest.count(self._turns(history)) - self.digest.count(kept)

    def _turns(self, history: Sequence[M]) -> Sequence[M]:
        """Return the part of the conversation that the rule depends on."""
        if Dependency.HISTORY in self.depends:
            return history
        depends = self.depends
        start = len(history) - 1 if depends & (CALL_PARTS | CONTEXT_PARTS) else len(history)
        if Dependency.RECENT in depends:
            start = next((i for i in range(start, -1, -1) if history[i]["role"] == "user"), 0)
        earlier = history[: max(start, 0)] if Dependency.SYSTEM in depends else ()
        return [*(m for m in earlier if m["role"] == "system"), *history[max(start, 0) :]]

    def unproven(self, roles: Sequence[str], reply: Mapping[str, Any] | None) -> str:
        """Describe the part of an observation and its reply that is not proven, or return ""."""
        if "system" in roles and LATE_SYSTEM not in self.proven:
            return "a system message after a reply"
        for one, other in pairwise(roles):
            if "system" not in (one, other) and not any(
                one[0] + other[0] in kind for kind in self.proven
            ):
                return f"a {other} message right after a {one} message"
        calls = reply.get("tool_calls") if reply else None
        if reply is None or not calls:
            return ""
        if len(calls) > 1 and "calls" not in self.proven:
            return f"{self.role} messages after several calls in one reply"
        if reply.get("content") and not self.proven >= {"saycall", "thinkcall"}:
            return f"{self.role} messages after a reply with text next to its call"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearity:
    """Which kinds of earlier replies a full render keeps; True if proven on ids."""

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
    markup: str
    """The placeholder with the control tokens right next to it."""
    numbered: bool
    """Whether earlier images change the text of a later one (add_vision_id)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentForms:
    """The kinds of message content, and of calls' arguments, that the template renders."""

    strings: bool
    parts: bool
    objects: bool = True
    """Whether arguments may be an object, as servers write them."""
    texts: bool = True
    """Whether arguments may be a text that is not JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Results for one template with its tokenizer, variables, tools and stop ids."""

    rules: Mapping[str, RoleRule]
    """By role: the rule after a plain-text reply, as the loop records replies. If the template
    rejects a tool message after such a reply, the reply is rendered as the call it contains."""
    refusals: Mapping[str, str]
    """Reason by role, for roles without a rule."""
    after_calls: Mapping[str, RoleRule]
    """By role: the rule after a reply whose message has structured calls."""
    call_refusals: Mapping[str, str]
    """Reason by role, for roles without a rule after structured calls."""
    forms: ContentForms
    generation_prompt: str
    linearity: Linearity
    images: ImageSyntax | None
    image_roles: tuple[str, ...]
    """Roles in which the template renders images."""
    groups_tool_results: bool
    renders_calls: bool
    stop_ids: tuple[int, ...]
    """The given ids, and any proven closer that was missing."""
    verified: int
    """Number of canned conversations whose delta equalled the tail of a full render, on ids."""
    notes: tuple[str, ...]

    def rule(self, roles: Sequence[str], reply: Mapping[str, Any] | None) -> RoleRule:
        """Return the rule for observations after a reply.

        Args:
            roles: Roles of the observations.
            reply: The message before them; None if unknown.

        Raises:
            TemplateError: The messages are not an observation, or the template was not proven exact
                for them.
        """
        first = "tool" if roles and roles[0] == "tool" else "user"
        known = {"user", "system", "tool"} if first == "tool" else {"user", "system"}
        if not roles or not known.issuperset(roles):
            raise TemplateError(
                "an observation must be user messages, or tool results followed by user messages, "
                f"got roles {list(roles)}"
            )
        makes_calls = bool(reply and reply.get("tool_calls"))
        rule = (self.after_calls if makes_calls else self.rules).get(first)
        if rule is None:
            reason = (self.call_refusals if makes_calls else self.refusals)[first]
            after = " after structured calls" if makes_calls else ""
            raise TemplateError(
                f"{first} observations{after} cannot be encoded: {reason}. "
                "Send tool output in a 'user' message instead"
            )
        unproven = rule.unproven(roles, reply)
        if unproven:
            raise TemplateError(
                f"the chat template could not be proven exact for {unproven}: it rejects or "
                "rewrites such conversations. Send the text in one message, and calls one at a time"
            )
        if Dependency.REPLY in rule.depends and reply is None:
            raise TemplateError(
                f"this chat template writes {first} messages after structured calls and after "
                "plain replies differently; pass history= with every earlier message"
            )
        return rule
