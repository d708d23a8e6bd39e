"""The verdict on a template: what is exact, what is refused, and which policy is needed."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from envkit.tokens.rules import Calibration, Dependency, ImageSyntax, Linearity, RoleRule


class RoleStatus(StrEnum):
    """Whether observations of a role can be encoded."""

    EXACT = "exact"
    """Their ids equal those that a full render has behind the last reply."""
    REFUSED = "refused"
    """They raise `TemplateError`; the reason says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAudit:
    """The verdict on one observation role."""

    role: str
    status: RoleStatus
    reason: str = ""
    """Why it is refused; empty when exact."""
    depends_on: tuple[str, ...] = ()
    """What must be supplied besides the observation; see `Dependency`."""
    closer: str = ""
    """The token that ends a reply in history."""
    closer_id: int | None = None
    closer_is_stop: bool = False
    """False: the engine never samples the closer; see `stand_in` and the notes."""
    stand_in: str = ""
    """The stop token that the model samples where history has the closer."""
    opener: bool = False
    """The next role's token ends a reply."""
    renders_images: bool = False
    """Whether the template writes pictures in this role (the codec takes them in `user` only)."""
    keeps_reply: bool | None = None
    """Whether a full render keeps an earlier reply followed by this role; None if refused."""
    keeps_thinking: bool | None = None
    """The same for a reply with reasoning."""
    is_direct: bool = False
    """Whether plain observations are written without running the template, which was proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAudit:
    """What calibration proved about a template with its tokenizer, variables and stop ids."""

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
    """A structured tool call loses the text beside it in a full render."""
    trims_replies: bool
    """White space at the edges of a reply is changed in a full render."""
    renders_tool_calls: bool
    groups_tool_results: bool
    supports_images: bool
    image_placeholder: str | None
    image_roles: tuple[str, ...]
    needs_tools: bool
    needs_system: bool
    needs_history: bool
    stop_ids: tuple[int, ...]
    verified: int
    """Canned conversations whose delta equalled the end of the full render, on ids."""
    notes: tuple[str, ...]
    """Warnings, and the template's own words where it refused a probe."""

    @property
    def is_exact(self) -> bool:
        """Whether user observations are exact: what a codec needs at the least."""
        return self.roles["user"].status is RoleStatus.EXACT

    def lines(self) -> list[str]:
        """Return the audit as text, one fact a line."""
        return list(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """Return the audit as JSON data."""
        return asdict(self)


def make_audit(
    calibration: Calibration, *, history: str, placeholder: ImageSyntax | None
) -> TemplateAudit:
    """Draw the verdict from what calibration found."""
    linearity, rules = calibration.linearity, calibration.rules
    roles = {
        role: _role(role, rules.get(role), calibration.refusals.get(role, ""), calibration)
        for role in ("user", "tool")
    }
    needs = {dependency for rule in rules.values() for dependency in rule.depends}
    stands_in = any(rule.stand_in for rule in rules.values())
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
        needs_history=Dependency.HISTORY in needs,
        stop_ids=calibration.stop_ids,
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
        keeps_reply=keeps and not rule.stand_in,
        keeps_thinking=keeps_thinking and not rule.stand_in,
        is_direct=rule.shape is not None,
    )


def _keeps(role: str, linearity: Linearity) -> tuple[bool, bool]:
    if role == "user":
        return linearity.plain_then_user, linearity.thinking_then_user
    return linearity.plain_then_tool, linearity.thinking_then_tool


def _lines(audit: TemplateAudit) -> Iterator[str]:
    for role in audit.roles.values():
        yield from _role_lines(role)
    yield f"reply starts after   {audit.generation_prompt!r}" + (
        " (reasoning is already open)" if audit.opens_thinking else ""
    )
    if audit.rewrites_history:
        yield f"history              a full render rewrites earlier replies; policy: {audit.policy}"
    else:
        yield "history              append-only: the ledger equals a full render"
    if audit.trims_replies:
        yield "                     a full render trims white space at the edges of a reply"
    if audit.drops_text_beside_call:
        yield "                     a full render drops the text beside a structured tool call"
    if audit.supports_images:
        yield f"images               {audit.image_placeholder!r} in user messages"
    else:
        yield "images               not rendered by this template"
    needs = [
        name
        for name, needed in (
            ("tools", audit.needs_tools),
            ("the system prompt", audit.needs_system),
            ("earlier turns", audit.needs_history),
        )
        if needed
    ]
    if needs:
        yield f"reads                {', '.join(needs)}, besides the observation"
    yield f"stop ids             {', '.join(map(str, audit.stop_ids))}"
    yield f"verified             {audit.verified} canned conversations, on ids"
    for note in audit.notes:
        yield f"note                 {note}"


def _role_lines(role: RoleAudit) -> Iterator[str]:
    name = f"{role.role} observations".ljust(20)
    if role.status is RoleStatus.REFUSED:
        yield f"{name} refused: {role.reason}"
        return
    closing = f"{role.closer!r} ({role.closer_id})"
    if role.opener:
        closing += ", the next role's token"
    elif role.stand_in:
        closing += f", for which the model samples {role.stand_in!r}"
    elif not role.closer_is_stop:
        closing += ", WHICH IS NOT A STOP ID"
    kept = "reply kept" if role.keeps_reply else "reply rewritten"
    thinking = "reasoning kept" if role.keeps_thinking else "reasoning stripped or moved"
    depends = f"; depends on {', '.join(role.depends_on)}" if role.depends_on else ""
    yield f"{name} exact; closer {closing}; {kept}, {thinking}{depends}"
