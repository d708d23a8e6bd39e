"""Find the cheapest rule whose tails equal those of full renders, comparing ids.

Every conversation of `probes` is rendered once in full. A rule may depend on the observation alone,
then also on tools, the system prompt, both, the reply, the turns since the last user message, or
the whole history. The first that agrees on every conversation wins. The last reply has a marker,
which exposes a rule that cuts in the wrong place.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from envkit.errors import TemplateError
from envkit.tokens.delta import DeltaRenderer
from envkit.tokens.digest import Counted, Digest
from envkit.tokens.probes import MARKER, NOTE, Case, Cases
from envkit.tokens.rules import Dependency, RoleRule

_LADDER: Final = tuple(
    frozenset(step)
    for step in (
        (),
        (Dependency.TOOLS,),
        (Dependency.SYSTEM,),
        (Dependency.TOOLS, Dependency.SYSTEM),
        (Dependency.LAST,),
        (Dependency.LAST, Dependency.TOOLS),
        (Dependency.LAST, Dependency.TOOLS, Dependency.SYSTEM),
        (Dependency.RECENT,),
        (Dependency.RECENT, Dependency.TOOLS),
        (Dependency.RECENT, Dependency.TOOLS, Dependency.SYSTEM),
        (Dependency.HISTORY,),
        (Dependency.HISTORY, Dependency.TOOLS),
    )
)
_STEPS: Final = frozenset[Dependency]().union(*_LADDER)
_BESIDE: Final = frozenset({"thinkcall", "saycall"})
_UNSUPPORTED: Final = (
    frozenset[str](),
    _BESIDE,
    frozenset({"calls", "tt"}),
    frozenset({"tu"}),
    frozenset({"uu"}),
    _BESIDE | {"calls", "tt"},
    _BESIDE | {"calls", "tt", "tu", "uu"},
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation with its full render."""

    case: Case
    text: str


def render_cases(
    renderer: DeltaRenderer, cases: Cases, rule: RoleRule, notes: list[str], *, images: bool = False
) -> list[Rendered]:
    """Return the cases that the template renders, and note its errors for the others.

    A template may accept some kinds only in a few courses, so each accepted kind is also tried with
    and without a system prompt and tools.
    """
    seen: dict[str, Case] = {}
    rendered: list[Rendered] = []
    for case in cases.of(rule, images=images):
        made = _render(renderer, case, rule.role, notes)
        if made is not None:
            rendered.append(made)
            seen.setdefault(case.follower, case)
    others = (other for case in list(seen.values()) for other in cases.other_settings(case))
    made = (_render(renderer, other, rule.role, notes) for other in others)
    return [*rendered, *(entry for entry in made if entry is not None)]


def _render(renderer: DeltaRenderer, case: Case, role: str, notes: list[str]) -> Rendered | None:
    try:
        text = renderer.template.render([*case.history, *case.observations], tools=case.tools)
    except TemplateError as error:
        notes.append(f"{role}, canned conversation: {error}")
        return None
    return Rendered(case, text) if MARKER in text else None


def check_own_reply(renderer: DeltaRenderer, cases: Cases, rule: RoleRule) -> None:
    """Test that a marked reply is followed by the same text as the reply itself.

    Raises:
        TemplateError: The template compares a whole reply, or its end, with a word.
    """
    for case in cases.said_last(rule):
        observed, tools = case.observations, case.tools
        try:
            full = renderer.template.render([*case.history, *observed], tools=tools)
            tail = renderer.tail(rule, observed, history=case.history, tools=tools)
        except TemplateError:
            continue
        if not full.endswith(tail):
            raise TemplateError(
                f"the chat template writes something else after the reply {case.history[-1]!r}, so "
                "what follows depends on every character that the model samples; remove that "
                "condition from the template"
            )


def prove(renderer: DeltaRenderer, rule: RoleRule, rendered: list[Rendered]) -> RoleRule:
    """Return the rule with the fewest dependencies, and the kinds that it was proven for.

    If no rule agrees with every conversation, some kinds of conversation become unsupported, and
    the codec rejects them.

    Raises:
        TemplateError: No rule agrees even then; the message shows where the last one differs.
    """
    problem = ""
    for unsupported in _UNSUPPORTED:
        kept = [
            entry for entry in rendered if not unsupported & {entry.case.form, entry.case.follower}
        ]
        if unsupported and len(kept) == len(rendered):
            continue
        found, problem = _climb(renderer, rule, kept)
        if found is not None:
            proven = {kind for entry in kept for kind in (entry.case.form, entry.case.follower)}
            return replace(found, proven=rule.proven | proven)
    raise TemplateError(f"the delta differs from a full render: {problem}")


def _climb(
    renderer: DeltaRenderer, rule: RoleRule, rendered: list[Rendered]
) -> tuple[RoleRule | None, str]:
    """Return the first rule of the ladder that agrees, else None and where the last one differs."""
    if not rendered:
        return None, f"the template renders no conversation with a {rule.role} message there"
    order = list(rendered)
    problem = ""
    for step in _LADDER[_LADDER.index(rule.depends & _STEPS) :]:
        trial = _Trial(renderer, replace(rule, depends=rule.depends - _STEPS | step))
        for index, entry in enumerate(order):
            problem = trial.problem(entry)
            if problem:
                order.insert(0, order.pop(index))  # likely to expose the next rule as well
                break
        else:
            return trial.rule, ""
    return None, problem


def shorten(
    renderer: DeltaRenderer, cases: Cases, rule: RoleRule, notes: list[str], *, images: bool
) -> RoleRule:
    """Return the rule with a digest of the turns that it reads, if one is proven.

    It must agree with full renders of long conversations. If the rule itself does not, it gets the
    whole history.
    """
    turns = rule.depends & {Dependency.RECENT, Dependency.HISTORY}
    if not turns or Dependency.IMAGES in rule.depends:
        return rule
    long = cases.long(rule, images=images)
    made = (_render(renderer, case, rule.role, notes) for case in long)
    rendered = [
        entry
        for entry in made
        if entry is not None and rule.proven >= {entry.case.form, entry.case.follower}
    ]
    digests = [
        Digest(words=cases.words, firsts=firsts, counted=counted)
        for counted in (None, *Counted)
        for firsts in (False, True)
    ]
    wider = replace(rule, depends=rule.depends - turns | {Dependency.HISTORY})
    for one in (rule, wider):
        for digest in digests:
            trial = _Trial(renderer, replace(one, digest=digest))
            if trial.shortens(rendered) and not any(map(trial.problem, rendered)):
                return trial.rule
    return next(
        (one for one in (rule, wider) if not any(map(_Trial(renderer, one).problem, rendered))),
        rule,
    )


def widen(renderer: DeltaRenderer, cases: Cases, rule: RoleRule) -> RoleRule:
    """Return the rule with the forms beside the usual ones for which it equals full renders too."""
    for name, some in cases.beside(rule):
        wider = replace(rule, proven=rule.proven | {name})
        if all(_holds(renderer, wider, case) for case in some if case.form in rule.proven):
            rule = wider
    return rule


def _holds(renderer: DeltaRenderer, rule: RoleRule, case: Case) -> bool:
    """Return whether a rule equals the full render of a case, with its system messages in place."""
    entry = _render(renderer, case, rule.role, [])
    if entry is None or _Trial(renderer, rule.within(case.history)).problem(entry):
        return False
    notes = sum(one["role"] == "system" for one in case.observations)
    return entry.text[entry.text.rfind(MARKER) :].count(NOTE) == notes


class _Trial:
    """One rule while it is tried; what does not depend on the conversation is rendered once."""

    def __init__(self, renderer: DeltaRenderer, rule: RoleRule) -> None:
        self.renderer, self.rule = renderer, rule
        self.tails: dict[str, str] = {}
        self.encoded: set[str] = set()

    def shortens(self, rendered: list[Rendered]) -> bool:
        """Return whether the rule's digest drops turns of some conversation."""
        whole = replace(self.rule, digest=None)
        histories = [entry.case.history for entry in rendered]
        return any(len(self.rule.read(one)) < len(whole.read(one)) for one in histories)

    def problem(self, entry: Rendered) -> str:
        """Return where the rule and a full render differ, or ""."""
        rule, full = self.rule, entry.text
        try:
            tail = self._tail(entry.case)
        except TemplateError as error:
            return str(error)
        if not full.endswith(tail):
            return f"expected the end {full[-len(tail) :]!r}, got {tail!r}"
        start = full.rfind(MARKER) + len(MARKER)
        between = full[start : len(full) - len(tail)]
        if len(full) - len(tail) < start or rule.closer in between:
            return f"the cut before {tail[:40]!r} is not at the end of the last reply"
        if rule.variant.calls == "none" and between.strip() != rule.prefix.strip():
            return f"the reply is followed by {between!r}, not by {rule.prefix!r}"
        if tail in self.encoded:  # starts at a token boundary, so the text before it is irrelevant
            return ""
        self.encoded.add(tail)
        whole, ids = self.renderer.template.encode(full), self.renderer.template.encode(tail)
        if whole[len(whole) - len(ids) :] != ids or ids[:1] != [rule.closer_id]:
            return f"the ids of {tail[:60]!r} differ from those in the whole conversation"
        return ""

    def _tail(self, case: Case) -> str:
        depends = self.rule.depends
        rule, history = self.rule, case.history
        kept = rule.read(history)
        read: list[Any] = [case.observations, kept, rule.skipped(history, kept)]
        if Dependency.TOOLS in depends:
            read.append(case.tools)
        if Dependency.IMAGES in depends:
            read.append(case.earlier_images)
        key = repr(read)
        if key not in self.tails:
            self.tails[key] = self.renderer.tail(
                rule,
                case.observations,
                history=history,
                tools=case.tools,
                earlier_images=case.earlier_images,
            )
        return self.tails[key]
