"""Compare an observation's delta with the text of a full render after the real reply.

The codec computes deltas from a stand-in conversation. This check renders the real one with the
tokenizer's own `apply_chat_template`. It shares only the tokenizer and the neutralising of text
with the delta. It ignores everything before the end of the reply, so it also works for templates
that rewrite earlier replies.

To find the end of the reply, it renders the conversation twice, once with a random mark after the
reply. The two renders agree up to the mark, which gives the position in the real one. For
structured tool calls the mark is an extra argument of the last call, and the real render must end
with the text that follows the mark. If the template does not write calls, the mark is in the text.

EQUAL proves that from the closer of the reply on, the delta has the same ids as an encoding of the
whole render, and that the closer is present exactly once. It does not prove:

- that the render contains the reply as it was sampled;
- for a template that drops tool messages after plain replies, that a reply contains the call that
  both renders show in its place;
- the text that the codec writes between a cut-off reply and its closer;
- for a template that rejects a reply's text (gpt-oss: its own control tokens), that the text makes
  no difference, because the check then replaces the replies by plain words.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from envkit.errors import TemplateError, describe
from envkit.tokens.encoded import Encoded
from envkit.tokens.rules import RoleRule
from envkit.tokens.template import ChatTemplate, PlainMessage, ToolSchemas

LONG_IDS: Final = 16_000
"""Ids of a conversation, one per image, from which on a run compares only a share of its
observations: a comparison renders and tokenizes the whole conversation."""
SanityMode = Literal["strict", "ignore_strippable", "off"]
"""Differences that fail a comparison. "strict": any. "ignore_strippable": any except white space.
"off": none, and nothing is compared."""


class SanityStatus(StrEnum):
    """How a delta compares with a full render."""

    EQUAL = "equal"
    """The same ids."""
    WHITESPACE = "whitespace"
    """Different ids, but their texts are equal or differ only in white space."""
    DIFFERENT = "different"
    """Different text, or different ids for the images."""
    UNCHECKED = "unchecked"
    """No comparison was possible; see `SanityReport.reason`."""

    def passes(self, mode: SanityMode) -> bool:
        """Return whether a mode accepts the status."""
        if self is SanityStatus.DIFFERENT:
            return mode == "off"
        return self is not SanityStatus.WHITESPACE or mode != "strict"


@dataclass(frozen=True, slots=True, kw_only=True)
class SanityReport:
    """The outcome of one comparison."""

    status: SanityStatus
    expected: str = ""
    """Text of the full render from the closer on; empty if equal."""
    found: str = ""
    """Text of the delta from the closer on; empty if equal."""
    reason: str = ""
    """Why nothing was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeImages:
    """The processor's output for a whole conversation, and the joined tensors of the ledger."""

    ids: Sequence[int]
    """The expanded conversation."""
    tensors: Mapping[str, NDArray[Any]]
    ours: Mapping[str, NDArray[Any]]

    def difference(self) -> SanityReport | None:
        """Return a report about the first tensor that differs; None if none does."""
        for name in sorted({*self.tensors, *self.ours}):
            want, have = self.tensors.get(name), self.ours.get(name)
            if want is not None and have is not None and np.array_equal(want, have):
                continue
            return SanityReport(
                status=SanityStatus.DIFFERENT,
                expected=f"image tensor {_shape(name, want)}",
                found=f"image tensor {_shape(name, have)}",
            )
        return None


def _shape(name: str, tensor: NDArray[Any] | None) -> str:
    return f"no {name}" if tensor is None else f"{name} of shape {tensor.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """The end of a full render, after the last reply."""

    text: str
    """The whole render."""
    prefix: str
    """Text between the reply and its closer."""
    closer_id: int
    """The token that closes the reply: the closer of the rule, or another stop token."""
    ids: list[int]
    """Ids from the closer on, taken from an encoding of the whole render."""


class _UnlocatedError(Exception):
    """The end of the last reply cannot be found in a full render."""

    def __init__(self, reason: str, text: str = "") -> None:
        """Keep the render, if there is one."""
        super().__init__(reason)
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReply:
    """The reply before an observation, and how the codec closes it."""

    index: int
    """Its place in the conversation."""
    sampled_ids: Sequence[int]
    """Its last id shows whether the model closed it."""
    rule: RoleRule
    """Determines the token that closes a reply."""
    stop_ids: frozenset[int]
    """Any of them may replace the closer."""
    adds_closer: bool
    """Whether the codec writes the closer after another stop token, or lets that token replace
    it."""


def check_delta(
    template: ChatTemplate,
    messages: Callable[[], list[PlainMessage]],
    encoded: Encoded,
    reply: LastReply,
    *,
    tools: ToolSchemas,
    process: Callable[[str], WholeImages | None] | None,
) -> SanityReport:
    """Compare the ids that a codec appends after a reply with a full render.

    Args:
        template: Its tokenizer renders and encodes.
        messages: Returns the whole conversation as the template reads it, the observation last.
        encoded: The appended observation.
        reply: The reply before the observation.
        tools: Tool schemas.
        process: Returns the processor's output for a text with all images, or None if it takes no
            text. Pass None if that would cost too much; image tokens are then not compared.
    """
    closer, closer_id = reply.rule.closer, reply.rule.closer_id
    try:
        stops = {template.added[one]: one for one in reply.stop_ids if one in template.added}
        closers = {closer: closer_id, **stops}
        tail = _render_tail(template, messages(), reply.index, tools, closers)
        closing = _Closing(template, tail.closer_id, reply)
        report = closing.compare(tail, encoded.wire_ids)
        if report.status is not SanityStatus.EQUAL:
            return report
        if encoded.images:
            whole = None if process is None else process(tail.text)
            if whole is None:
                return report
            if (difference := whole.difference()) is not None:
                return difference
            tail = replace(tail, ids=_ids_from(whole.ids, tail.ids, tail.closer_id))
        return closing.compare(tail, encoded.train_ids)
    except _UnlocatedError as error:
        given = list(encoded.wire_ids)
        if not {*reply.sampled_ids[-1:]} & {closer_id, *reply.stop_ids} and closer_id in given:
            given = given[given.index(closer_id) :]  # after text that the codec wrote
        return _compare_ends(template, error, given)
    except Exception as error:  # noqa: BLE001  # template and processor are foreign code
        return SanityReport(status=SanityStatus.UNCHECKED, reason=describe(error))


def _compare_ends(template: ChatTemplate, error: _UnlocatedError, given: list[int]) -> SanityReport:
    """Return whether a full render at least ends with a delta, whose start is not checked."""
    want = template.encode(error.text)[-len(given) :] if error.text and given else given
    if given == want:
        return SanityReport(status=SanityStatus.UNCHECKED, reason=describe(error))
    return SanityReport(
        status=SanityStatus.DIFFERENT,
        expected=template.decode(want),
        found=template.decode(given),
    )


def _render_tail(
    template: ChatTemplate,
    messages: Sequence[PlainMessage],
    reply: int,
    tools: ToolSchemas,
    closers: Mapping[str, int],
) -> _Tail:
    """Render a whole conversation and return what follows a reply."""
    mark = f"Zq{secrets.token_hex(6)}Xw"
    try:
        text = _render(template, messages, tools)
    except TemplateError:
        # Such as gpt-oss's, which rejects its own channel tokens in a reply.
        messages = [_plain_reply(entry) for entry in messages]
        text = _rendered(template, messages, tools)
    marked = _rendered(template, _with_mark(messages, reply, mark), tools)
    if mark not in marked:  # the template does not write calls
        marked = _rendered(template, _with_mark(messages, reply, mark, in_calls=False), tools)
    if marked.count(mark) != 1:
        raise _UnlocatedError(f"the template writes the reply {marked.count(mark)} times", text)
    before, _, after = marked.partition(mark)
    # Templates may strip a reply, or not: white space before the mark says nothing.
    place = len(before.rstrip())
    # Not with a mark in the arguments of a call, which renders them differently: there the end of
    # the render is compared.
    if text.startswith(before[:place]):
        found = _first_of(closers, text, place)
        if found is None:  # the template closes this reply with plain text
            closer_id = next(iter(closers.values()))
            ids = template.encode(text[place:])
            return _Tail(text=text, prefix="", closer_id=closer_id, ids=ids)
        cut, closer_id = found
        prefix = text[place:cut]
    else:
        found = _first_of(closers, after, 0)
        if found is None or not text.endswith(after[found[0] :]):
            raise _UnlocatedError("a mark after the reply changes the render elsewhere", text)
        offset, closer_id = found
        cut, prefix = len(text) - len(after[offset:]), after[:offset]
    try:
        ids = _ids_from(template.encode(text), template.encode(text[cut:]), closer_id)
    except _UnlocatedError as error:
        raise _UnlocatedError(str(error), text) from error
    return _Tail(text=text, prefix=prefix, closer_id=closer_id, ids=ids)


def _first_of(closers: Mapping[str, int], text: str, start: int) -> tuple[int, int] | None:
    """Return position and id of the first closer in a text; at one position the longer one wins."""
    found = [(text.find(name, start), -len(name), one) for name, one in closers.items()]
    return next(((place, one) for place, _, one in sorted(found) if place >= 0), None)


class _Closing:
    """Compares ids from the closer of a reply on, whether the model or the codec wrote it."""

    def __init__(self, template: ChatTemplate, closer_id: int, reply: LastReply) -> None:
        """Set how the reply ended.

        Args:
            template: Decodes ids.
            closer_id: The token that closes the reply in a full render.
            reply: The reply.
        """
        self.template, self.closer_id = template, closer_id
        self.adds = reply.adds_closer if closer_id == reply.rule.closer_id else None
        """Whether the delta has the closer after another stop token; None allows both."""
        last = reply.sampled_ids[-1] if len(reply.sampled_ids) else None
        self.is_closed = last == closer_id
        self.is_stopped = last in reply.stop_ids

    def compare(self, tail: _Tail, delta: Sequence[int]) -> SanityReport:
        given, want, decode = list(delta), tail.ids, self.template.decode
        adds = given[:1] == [self.closer_id] if self.adds is None else self.adds
        if self.is_closed or (self.is_stopped and not adds):
            given = [self.closer_id, *given]
        if given == want:
            return SanityReport(status=SanityStatus.EQUAL)
        added = len(given) - len(want)
        is_cut = not (self.is_closed or self.is_stopped)
        # A cut reply lacks the text that the template writes before its closer; the codec wrote it.
        if is_cut and given[added:] == want:
            lead, prefix = ("".join(text.split()) for text in (decode(given[:added]), tail.prefix))
            if prefix.endswith(lead):
                return SanityReport(status=SanityStatus.EQUAL)
        expected, found = decode(want), decode(given)
        same = "".join(expected.split()) == "".join(found.split())
        return SanityReport(
            status=SanityStatus.WHITESPACE if same else SanityStatus.DIFFERENT,
            expected=expected,
            found=found,
        )


def _ids_from(ids: Sequence[int], tail: Sequence[int], closer_id: int) -> list[int]:
    """Return the end of a conversation's ids, from the closer that starts a tail."""
    # Counted from the end, since the reply itself may contain the closer.
    closers = list(tail).count(closer_id)
    places = [index for index, identity in enumerate(ids) if identity == closer_id]
    if tail[0] != closer_id or closers > len(places):
        raise _UnlocatedError(f"the closer of the reply is not encoded as {closer_id}")
    return list(ids[places[-closers] :])


def _render(template: ChatTemplate, messages: Sequence[PlainMessage], tools: ToolSchemas) -> str:
    """Render through the tokenizer itself, not through the codec's compiled template."""
    try:
        return template.tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=True,
            tools=None if tools is None else list(tools),
            **template.kwargs,
        )
    except Exception as error:  # a template is foreign code and can raise anything
        raise TemplateError(f"the chat template rejects the conversation: {error}") from error


def _rendered(template: ChatTemplate, messages: Sequence[PlainMessage], tools: ToolSchemas) -> str:
    try:
        return _render(template, messages, tools)
    except TemplateError as error:
        raise _UnlocatedError(str(error)) from error


def _plain_reply(entry: PlainMessage) -> PlainMessage:
    """Return a reply with its text replaced by a plain word; other messages unchanged."""
    if entry["role"] != "assistant" or not entry.get("content"):
        return entry
    is_text = isinstance(entry["content"], str)
    return {**entry, "content": "word" if is_text else [{"type": "text", "text": "word"}]}


def _with_mark(
    messages: Sequence[PlainMessage], reply: int, mark: str, *, in_calls: bool = True
) -> list[PlainMessage]:
    marked = list(messages)
    entry = dict(marked[reply])
    if in_calls and entry.get("tool_calls"):
        *calls, last = entry["tool_calls"]
        entry["tool_calls"] = [*calls, _marked_call(last, mark)]
    elif isinstance(entry.get("content"), list):
        *parts, last = entry["content"] or [{"type": "text", "text": ""}]
        entry["content"] = [*parts, {**last, "text": f"{last.get('text', '')}{mark}"}]
    else:
        entry["content"] = f"{entry.get('content') or ''}{mark}"
    marked[reply] = entry
    return marked


def _marked_call(call: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """Return a tool call whose last argument is the mark."""
    function = dict(call.get("function", call))
    arguments: Any = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.dumps({**json.loads(arguments), "zq": mark})
        except (ValueError, TypeError):
            function["arguments"] = arguments + mark
    else:
        function["arguments"] = {**(arguments or {}), "zq": mark}
    return {**call, "function": function} if "function" in call else function
