"""Print an audit on one screen, and measure the cost of a delta."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby, repeat
from typing import Any, Final, cast

from envkit.errors import TemplateError
from envkit.messages import Message
from envkit.tokens.audit import RoleAudit, RoleStatus, StopAudit, TemplateAudit
from envkit.tokens.codec import ChatCodec

_TURNS: Final = (1, 50)
_WORDS: Final = 68
"""Words in the measured observation, about 200 tokens."""
_MEASURING_S: Final = 0.2
"""Measuring time per role and turn."""
_SHOWN_NOTES: Final = 6
_SHOWN_TOKENS: Final = 5
_WIDTH: Final = 150
"""Characters shown of a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCost:
    """Overhead of encoding an observation on top of tokenizing its text, in microseconds."""

    role: str
    turn: int
    """Replies in the history before it."""
    microseconds: float
    tokens: int
    """Length of the delta."""


def measure_cost(codec: ChatCodec) -> tuple[DeltaCost, ...]:
    """Encode a plain observation of about 200 tokens after a short and a long history.

    Args:
        codec: The codec whose roles are measured, except rejected ones.
    """
    roles = [one.role for one in codec.audit().roles.values() if one.status is RoleStatus.EXACT]
    found = [_measure(codec, role, turn) for role in roles for turn in _TURNS]
    return tuple(cost for cost in found if cost is not None)


def describe_join(codec: ChatCodec) -> str:
    """Return how the tensors of several images are joined, proven on probe images.

    Args:
        codec: The codec; one without a processor rejects images.
    """
    try:
        rules = codec.image_rules()
    except TemplateError as error:
        return f"refused: {error}"
    joined = ", ".join(f"{key} along {rule}" for key, rule in rules.joining.rules.items())
    return f"{rules.joining.family} joins {joined}"


def audit_json(audit: TemplateAudit, costs: Sequence[DeltaCost], join: str) -> dict[str, Any]:
    """Return an audit with measured costs as JSON data; `join` comes from `describe_join`."""
    joins = join if audit.supports_images else None
    return {
        **audit.to_json(),
        "image_join": joins,
        "delta_cost": [asdict(cost) for cost in costs],
    }


def audit_page(audit: TemplateAudit, costs: Sequence[DeltaCost], join: str) -> Iterator[str]:
    """Yield an audit with measured costs as lines of text, to fit on one screen.

    Args:
        audit: What calibration proved.
        costs: The result of `measure_cost`.
        join: The result of `describe_join`.
    """
    for role in audit.roles.values():
        yield from _role_lines(role)
    opened = " (reasoning is already open)" if audit.opens_thinking else ""
    yield f"reply starts after   {audit.generation_prompt!r}{opened}"
    for label, stop in zip(_labels("stop ids"), audit.stops, strict=False):
        yield f"{label}{_stop(stop)}"
    yield from _history_lines(audit)
    yield from _text_lines(audit)
    yield from _image_lines(audit, join)
    yield from _cost_lines(costs)
    yield f"verified             {audit.verified} canned conversations, on ids"
    for label, note in zip(_labels("notes"), audit.notes[:_SHOWN_NOTES], strict=False):
        line = " ".join(note.split())
        yield label + (line if len(line) <= _WIDTH else f"{line[:_WIDTH]}...")
    if len(audit.notes) > _SHOWN_NOTES:
        yield f"{_label('')}and {len(audit.notes) - _SHOWN_NOTES} more; see --json"


def _measure(codec: ChatCodec, role: str, turn: int) -> DeltaCost | None:
    history = [_message("user", "Begin."), _message("assistant", "Reply.")]
    for _ in range(turn - 1):
        history += [_message("user", "Take the next step."), _message("assistant", "Reply.")]
    pending = [_message(role, " ".join(f"word{n}" for n in range(_WORDS)))]
    sampled = codec.encode_reply("Reply.")

    def encode() -> Sequence[int]:
        return codec.encode_observation(pending, sampled_ids=sampled, history=history).wire_ids

    try:
        ids = encode()
    except TemplateError:  # for a template that needs structured calls in every tool round
        return None
    text = codec.decode_all(ids)
    pairs: list[tuple[float, float]] = []
    until = time.perf_counter() + _MEASURING_S
    while not pairs or time.perf_counter() < until:
        pairs.append((_seconds(encode), _seconds(lambda: codec.encode_text(text))))
    whole, alone = (min(column) for column in zip(*pairs, strict=True))  # least noise
    microseconds = round(1e6 * max(0.0, whole - alone), 1)
    return DeltaCost(role=role, turn=turn, microseconds=microseconds, tokens=len(ids))


def _message(role: str, text: str) -> Message:
    entry: dict[str, Any] = {"role": role, "content": text}
    if role == "tool":
        entry |= {"name": "f", "tool_call_id": "call00000"}
    return cast("Message", entry)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _label(name: str) -> str:
    return name.ljust(21)


def _labels(name: str) -> Iterator[str]:
    """Yield the label of the first line, then any number of blank ones."""
    return chain([_label(name)], repeat(_label("")))


def _role_lines(role: RoleAudit) -> Iterator[str]:
    name = _label(f"{role.role} observations")
    if role.status is RoleStatus.REFUSED:
        yield f"{name}refused: {role.reason}"
        return
    closing = f"{role.closer!r} ({role.closer_id})"
    if role.opener:
        closing += ", the next role's token"
        if not role.closer_is_stop:
            closing += ", after the stop token that the model samples"
    elif role.stand_in:
        closing += f", for which the model samples {role.stand_in!r}"
    elif not role.closer_is_stop:
        closing += ", WHICH IS NOT A STOP ID"
    yield f"{name}exact; a reply is closed by {closing}"
    depends = ", ".join(role.depends_on) or "nothing else"
    how = "written without running the template" if role.is_direct else "rendered each time"
    yield f"{_label('')}ids depend on the observation and {depends}; {how}"


def _stop(stop: StopAudit) -> str:
    name = f"{stop.token_id} {stop.token!r}" if stop.token else str(stop.token_id)
    if stop.closes:
        return f"{name} closes a reply before {' and '.join(stop.closes)} messages"
    if stop.stands_in_for:
        return f"{name} is sampled where history has {stop.stands_in_for!r}"
    return f"{name} ends a reply in place of the closer (stop_mismatch)"


def _history_lines(audit: TemplateAudit) -> Iterator[str]:
    if audit.rewritten:
        yield f"{_label('history')}a full render rewrites {'; '.join(audit.rewritten)}"
        yield f"{_label('')}policy: {audit.policy}"
    else:
        yield f"{_label('history')}append-only: nothing is rewritten"
    if audit.trims_replies:
        yield f"{_label('')}a full render trims white space at the edges of a reply"
    if audit.drops_text_beside_call:
        yield f"{_label('')}a full render drops the text next to a structured tool call"


def _text_lines(audit: TemplateAudit) -> Iterator[str]:
    name = _label("control tokens")
    if not audit.neutralised:
        yield f"{name}NOT neutralised in the text of environments and users"
        return
    some = ", ".join(map(repr, audit.neutralised[:_SHOWN_TOKENS]))
    rest = len(audit.neutralised) - _SHOWN_TOKENS
    more = f" and {rest} more" if rest > 0 else ""
    yield f"{name}{some}{more}: neutralised by {audit.neutralised_by}"


def _image_lines(audit: TemplateAudit, join: str) -> Iterator[str]:
    name = _label("images")
    if not audit.supports_images:
        yield f"{name}not rendered by this template"
        return
    yield f"{name}{audit.image_placeholder!r} in {' and '.join(audit.image_roles)} messages; {join}"


def _cost_lines(costs: Sequence[DeltaCost]) -> Iterator[str]:
    for label, (role, found) in zip(
        _labels("delta cost"), groupby(costs, lambda cost: cost.role), strict=False
    ):
        several = list(found)
        parts = [f"{cost.microseconds:,.0f} us at turn {cost.turn}" for cost in several]
        yield (
            f"{label}{role}: {', '.join(parts)}, on top of tokenizing {several[0].tokens} tokens"
        )
