"""The verdict on a template: what is exact, what is rejected, and which policy is needed.

`envkit.tokens.audit_page` prints it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from envkit.tokens.rules import (
    TURN_PARTS,
    Calibration,
    Dependency,
    ImageSyntax,
    Linearity,
    RoleRule,
)


class RoleStatus(StrEnum):
    """Whether observations of a role can be encoded."""

    EXACT = "exact"
    """Their ids equal those after the last reply in a full render."""
    REFUSED = "refused"
    """They raise `TemplateError` with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAudit:
    """The verdict on one observation role."""

    role: str
    status: RoleStatus
    reason: str = ""
    """Why it is rejected; empty if exact."""
    depends_on: tuple[str, ...] = ()
    """What is needed in addition to the observation; see `Dependency`."""
    closer: str = ""
    """The token that ends a reply in history."""
    closer_id: int | None = None
    closer_is_stop: bool = False
    """False: the engine never samples the closer; see `stand_in` and the notes."""
    stand_in: str = ""
    """The stop token that the model samples where history has the closer."""
    opener: bool = False
    """The next role's token ends a reply, which the model samples if `closer_is_stop`."""
    renders_images: bool = False
    """Whether the template writes images in this role."""
    keeps_reply: bool | None = None
    """Whether a full render keeps an earlier reply followed by this role; None if refused."""
    keeps_thinking: bool | None = None
    """The same for a reply with reasoning."""
    takes_any_call_id: bool = False
    """Whether a tool message may have any call id; Mistral's templates want nine characters."""
    is_direct: bool = False
    """Whether plain observations are written without running the template, which was proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAudit:
    """Effect of a stop id on a reply."""

    token_id: int
    token: str
    """Its text; empty if the tokenizer does not list it as an added token."""
    closes: tuple[str, ...]
    """Roles before which the template closes a reply with it."""
    stands_in_for: str = ""
    """The closer that history has where the model samples this token; empty if it closes replies
    itself. `stop_mismatch` applies to any other stop token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAudit:
    """Results of calibrating a template with its tokenizer, variables and stop ids."""

    roles: dict[str, RoleAudit]
    """By role: "user" and "tool"."""
    generation_prompt: str
    """What the template writes before a reply."""
    opens_thinking: bool
    """The generation prompt already opens the reasoning: replies start inside it."""
    rewrites_history: bool
    """Whether a full render changes earlier replies, so that prompts are not append-only."""
    policy: str
    """"append": nothing is rewritten. Else the codec's choice, "keep" or "rerender"."""
    policy_required: bool
    """Whether `history` matters: the same as `rewrites_history`."""
    drops_text_beside_call: bool
    """A full render drops the text next to a structured tool call."""
    trims_replies: bool
    """A full render changes white space at the edges of a reply."""
    renders_tool_calls: bool
    groups_tool_results: bool
    supports_images: bool
    image_placeholder: str | None
    image_roles: tuple[str, ...]
    needs_tools: bool
    needs_system: bool
    needs_history: bool
    stop_ids: tuple[int, ...]
    stops: tuple[StopAudit, ...]
    """The same ids, with the effect of each."""
    rewritten: tuple[str, ...]
    """What a full render changes in earlier replies; empty if nothing."""
    neutralised: tuple[str, ...]
    """Control tokens that the text of environments and users cannot produce."""
    neutralised_by: str
    """Character that neutralises them; empty if none."""
    verified: int
    """Canned conversations whose delta equalled the end of the full render, on ids."""
    notes: tuple[str, ...]
    """Warnings, and the template's messages for rejected probes."""

    def to_json(self) -> dict[str, Any]:
        """Return the audit as JSON data."""
        return asdict(self)


def make_audit(
    calibration: Calibration,
    *,
    history: str,
    placeholder: ImageSyntax | None,
    names: Mapping[int, str],
    neutralised: Iterable[str],
    neutralised_by: str,
) -> TemplateAudit:
    """Build the audit from a calibration.

    Args:
        calibration: Proven properties of the template.
        history: The codec's policy.
        placeholder: How images are written; None if they are not.
        names: Texts of the added tokens, by id.
        neutralised: Control tokens that text cannot produce.
        neutralised_by: The character inserted into them; empty if none.
    """
    linearity, rules = calibration.linearity, calibration.rules
    roles = {
        role: _role(role, rules.get(role), calibration.refusals.get(role, ""), calibration)
        for role in ("user", "tool")
    }
    needs = {dependency for rule in rules.values() for dependency in rule.depends}
    stands_in = any(rule.replaces_stop for rule in rules.values())
    rewrites = linearity.rewrites or stands_in
    return TemplateAudit(
        roles=roles,
        generation_prompt=calibration.generation_prompt,
        opens_thinking=calibration.generation_prompt.rstrip().endswith("<think>"),
        rewrites_history=rewrites,
        policy=history if rewrites else "append",
        policy_required=rewrites,
        drops_text_beside_call=not linearity.text_beside_call,
        trims_replies=not linearity.edge_spaces,
        renders_tool_calls=calibration.renders_calls,
        groups_tool_results=calibration.groups_tool_results,
        supports_images=placeholder is not None,
        image_placeholder=None if placeholder is None else placeholder.placeholder,
        image_roles=calibration.image_roles,
        needs_tools=Dependency.TOOLS in needs,
        needs_system=Dependency.SYSTEM in needs,
        needs_history=bool(needs & TURN_PARTS),
        stop_ids=calibration.stop_ids,
        stops=tuple(_stop(one, names.get(one, ""), rules) for one in calibration.stop_ids),
        rewritten=tuple(_rewritten(linearity, stands_in)),
        neutralised=tuple(sorted(neutralised)),
        neutralised_by=neutralised_by,
        verified=calibration.verified,
        notes=calibration.notes,
    )


def _role(role: str, rule: RoleRule | None, reason: str, calibration: Calibration) -> RoleAudit:
    if rule is None:
        return RoleAudit(role=role, status=RoleStatus.REFUSED, reason=reason)
    keeps, keeps_thinking = _keeps(role, calibration.linearity)
    return RoleAudit(
        role=role,
        status=RoleStatus.EXACT,
        depends_on=tuple(sorted(rule.depends)),
        closer=rule.closer,
        closer_id=rule.closer_id,
        closer_is_stop=rule.closer_is_stop,
        stand_in=rule.stand_in,
        opener=rule.opener,
        renders_images=role in calibration.image_roles,
        keeps_reply=keeps and not rule.replaces_stop,
        keeps_thinking=keeps_thinking and not rule.replaces_stop,
        takes_any_call_id=rule.takes_any_call_id,
        is_direct=rule.shape is not None,
    )


def _stop(identity: int, name: str, rules: Mapping[str, RoleRule]) -> StopAudit:
    closes = tuple(role for role, rule in rules.items() if rule.closer_id == identity)
    replaced = [rule.closer for rule in rules.values() if name and rule.stand_in == name]
    return StopAudit(
        token_id=identity,
        token=name,
        closes=closes,
        stands_in_for=replaced[0] if replaced and not closes else "",
    )


def _rewritten(linearity: Linearity, stands_in: bool) -> Iterator[str]:
    """Describe what a full render changes; a changed plain reply makes the rest redundant."""
    if not linearity.plain_then_user:
        yield "replies before a user message"
    elif not linearity.thinking_then_user:
        yield "reasoning before a user message"
    if not linearity.plain_then_tool:
        yield "replies before a tool message"
    elif not linearity.thinking_then_tool:
        yield "reasoning before a tool message"
    elif linearity.thinking_then_user and not linearity.thinking_tool_then_user:
        yield "reasoning before a tool message, once a user message follows"
    if stands_in:
        yield "the stop token of replies"


def _keeps(role: str, linearity: Linearity) -> tuple[bool, bool]:
    if role == "user":
        return linearity.plain_then_user, linearity.thinking_then_user
    return linearity.plain_then_tool, linearity.thinking_then_tool
