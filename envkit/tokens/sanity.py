"""The ledger of a whole episode against one full render of its messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from envkit.tokens.template import ChatTemplate

SanityMode = Literal["strict", "ignore_strippable", "off"]


class SanityStatus(StrEnum):
    """How a ledger and a full render compare."""

    EQUAL = "equal"
    """The same ids."""
    RETOKENISED = "retokenised"
    """The same text; the model sampled another split of its own words than the tokenizer makes."""
    WHITESPACE = "whitespace"
    """The texts differ only in white space: the template trims what the model said."""
    REWRITTEN = "rewritten"
    """The template rewrites history, as its audit says, so the two are not comparable."""
    DIFFERENT = "different"
    """Neither: something drifted."""
    SKIPPED = "skipped"
    """The mode is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SanityReport:
    """The outcome of one comparison."""

    status: SanityStatus
    mode: SanityMode
    ok: bool
    """Whether the mode accepts the status. A rewritten history is accepted by name: the policy
    "keep" means that the ledger, not the render, is what the model saw."""
    first_difference: int | None = None
    """Index of the first wire id that differs; None when none does."""
    detail: str = ""
    """Both texts around the first difference."""


_ACCEPTED: dict[SanityMode, frozenset[SanityStatus]] = {
    "strict": frozenset({SanityStatus.EQUAL, SanityStatus.RETOKENISED, SanityStatus.REWRITTEN}),
    "ignore_strippable": frozenset(set(SanityStatus) - {SanityStatus.DIFFERENT}),
    "off": frozenset(SanityStatus),
}


def compare(
    template: ChatTemplate,
    ledger: Sequence[int],
    full: Sequence[int],
    *,
    mode: SanityMode,
    rewrites: bool,
    is_context: Callable[[Sequence[int]], bool],
) -> SanityReport:
    """Compare the ids of a ledger, up to the last reply, with those of a full render.

    Args:
        template: Turns ids into text.
        ledger: The recorded ids.
        full: The rendered ids.
        mode: What is acceptable.
        rewrites: Whether the audit says that this template rewrites history.
        is_context: Whether both agree once the model's own runs are re-encoded.
    """
    if list(ledger) == list(full):
        return SanityReport(status=SanityStatus.EQUAL, mode=mode, ok=True)
    shared = min(len(ledger), len(full))
    first = next((i for i in range(shared) if ledger[i] != full[i]), shared)
    ours, theirs = template.decode(ledger), template.decode(full)
    if ours == theirs and is_context(full):
        status = SanityStatus.RETOKENISED
    elif ours != theirs and "".join(ours.split()) == "".join(theirs.split()):
        status = SanityStatus.WHITESPACE
    else:
        status = SanityStatus.DIFFERENT
    if rewrites and status in (SanityStatus.DIFFERENT, SanityStatus.WHITESPACE):
        status = SanityStatus.REWRITTEN
    around = slice(max(0, first - 8), first + 8)
    detail = f"ledger {template.decode(ledger[around])!r}, render {template.decode(full[around])!r}"
    return SanityReport(
        status=status,
        mode=mode,
        ok=status in _ACCEPTED[mode],
        first_difference=first,
        detail=detail,
    )
