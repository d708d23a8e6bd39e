"""Parse a model's reply as a search, an answer, or neither.

Two protocols. **Tags* is Search-R1's (search_r1/llm_agent/generation.py): thoughts in `<think>`,
then `<search>` or `<answer>`; results come back in `<information>`. *Tools* is a call of
`search(query, topk)` in any format that envkit reads, and the final answer in `<answer>` or plain.

Parsing never raises for model output and takes time linear in the reply's length. `<information>`
belongs to the environment: a reply that contains one is marked as forged, and the content of that
block is ignored.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple

from envkit.reply import Reply
from envkit.toolcalls import ToolCall, call_errors, parse_tool_calls
from envkit.tools import ToolSpec
from envkit_search.markup import plain

MAX_QUERY_CHARACTERS: Final = 512
MAX_ANSWER_CHARACTERS: Final = 2000
"""A longer answer is graded as wrong without being read."""
MAX_QUERIES: Final = 8
"""Maximum searches per reply."""
MAX_TOPK: Final = 20

MAX_REPLY_CHARACTERS: Final = 1_000_000
"""A longer reply is not read."""
_MAX_TAGS: Final = 500
"""Beyond this many tags the rest counts as text: such a reply is a loop, and slow to parse."""
_MAX_CALLS: Final = 64
"""A reply with more call markers is not read either."""

# The case flag is inside the group, so searching for "<" stays a single-character search.
_TAG: Final = re.compile(r"<(/?)\s{0,8}((?i:think|search|information|answer))\s{0,8}>")
_EXACT_TAG: Final = re.compile(r"(</?(?:think|search|information|answer)>)")
_FORGED: Final = re.compile(r"<\s{0,8}/?\s{0,8}(?i:information|tool_response)\b")
_FIRST_PAIR: Final = re.compile(r"<(search|answer)>")
_TURN_SHAPES: Final = {
    "search": ["<think>", "</think>", "<search>", "</search>"],
    "answer": ["<think>", "</think>", "<answer>", "</answer>"],
}


class Protocol(StrEnum):
    """How a model writes searches and answers."""

    TAGS = "tags"
    """`<search>query</search>` and `<answer>text</answer>`, as in Search-R1."""
    TOOLS = "tools"
    """Calls of the tool `search`; the answer in `<answer>` or as a reply without a call."""


class ActionKind(StrEnum):
    """What a reply asks for."""

    SEARCH = "search"
    ANSWER = "answer"
    NONE = "none"
    """Neither: the reply could not be understood."""


class _Tag(NamedTuple):
    """A tag of the protocol in a reply."""

    is_closing: bool
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One search that a reply asks for."""

    text: str
    """On one line, at most `MAX_QUERY_CHARACTERS`; empty if the model gave no query."""
    topk: int | None = None
    """None uses the environment's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A parsed reply."""

    kind: ActionKind
    queries: tuple[Query, ...] = ()
    answer: str | None = None
    """Stripped; None unless `kind` is ANSWER."""
    error: str | None = None
    """Why the reply was not understood, for `info["parse_error"]`."""
    is_well_formed: bool = False
    """Whether the reply follows the protocol's format exactly."""
    is_forged: bool = False
    """Whether it contains a block that only the environment may write."""
    call: ToolCall | None = None
    """The first call of the tool protocol."""
    dropped_calls: int = 0
    """Calls beyond `MAX_QUERIES`, which are not run."""


def _nothing(error: str, *, is_forged: bool = False) -> Action:
    """Return what a reply stands for that asks for nothing."""
    return Action(kind=ActionKind.NONE, error=error[:200], is_forged=is_forged)


_TOO_LONG: Final = _nothing(f"a reply may have at most {MAX_REPLY_CHARACTERS} characters")


def read_tags(said: Reply) -> Action:
    """Read a reply of the tags protocol.

    The first `<search>` or `<answer>` pair outside thoughts counts; tags may be written in capitals
    or with spaces inside.
    """
    reply = said.text
    if len(reply) > MAX_REPLY_CHARACTERS:
        return _TOO_LONG
    is_forged = _has_forged(reply)
    found = _first_action(said.final)
    if found is None:
        error = "there is no <search> and no <answer> outside <think> in the reply"
        return _nothing(error, is_forged=is_forged)
    tag, content = found
    return _tag_action(tag, content, is_forged, _is_well_formed(reply, is_think_given=True))


def read_tags_compat(reply: str) -> Action:
    """Read a reply as Search-R1 does: the first exact pair, inside thoughts too.

    The form is checked on the part that Search-R1 keeps of a reply: everything up to the first
    `</search>`, or else up to the first `</answer>`.
    """
    if len(reply) > MAX_REPLY_CHARACTERS:
        return _TOO_LONG
    kept = _cut(reply)
    is_forged = _has_forged(kept)
    found = next(_pairs(kept), None)
    if found is None:
        error = "there is no <search> pair and no <answer> pair in the reply"
        return _nothing(error, is_forged=is_forged)
    tag, content = found
    return _tag_action(tag, content, is_forged, _is_well_formed(kept, is_think_given=False))


def last_answer_compat(reply: str) -> str | None:
    """Return the last `<answer>` pair in the part that Search-R1 keeps of a reply, or None."""
    kept, last, at = _cut(reply[:MAX_REPLY_CHARACTERS]), None, 0
    while (start := kept.find("<answer>", at)) >= 0:
        end = kept.find("</answer>", start)
        if end < 0:
            break
        last, at = kept[start + len("<answer>") : end].strip(), end + len("</answer>")
    return last


def read_tools(said: Reply, tools: tuple[ToolSpec, ...]) -> Action:
    """Read a reply of the tool protocol.

    Calls outside thoughts take precedence; a reply without any is the final answer, the content of
    its last `<answer>` pair or else the whole text without thoughts.
    """
    reply = said.text
    if len(reply) > MAX_REPLY_CHARACTERS:
        return _TOO_LONG
    if reply.count("<tool_call>") + reply.count("<function=") > _MAX_CALLS:
        return _nothing(f"a reply may hold at most {_MAX_CALLS} calls")
    is_forged = _has_forged(reply)
    parsed = parse_tool_calls(said, tools=tools)
    if parsed.calls:
        return _call_action(parsed.calls, tools, is_forged, is_clean=not parsed.errors)
    if parsed.errors:
        return _nothing(parsed.errors[0], is_forged=is_forged)
    tagged = last_answer(parsed.text)
    answer = parsed.text if tagged is None else tagged
    if not answer:
        return _nothing("the reply holds neither a call nor an answer", is_forged=is_forged)
    return Action(
        kind=ActionKind.ANSWER,
        answer=answer,
        is_well_formed=tagged is not None and not is_forged,
        is_forged=is_forged,
    )


def last_answer(text: str) -> str | None:
    """Return the content of the last closed `<answer>` pair, stripped; None without one."""
    close = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, close) if close >= 0 else -1
    return None if start < 0 else text[start + len("<answer>") : close].strip()


def clean_query(text: str) -> str:
    """Return a query on one line, without protocol tags, truncated to the maximum length."""
    return plain(_TAG.sub(" ", text[: 8 * MAX_QUERY_CHARACTERS]), MAX_QUERY_CHARACTERS)


def _tag_action(tag: str, content: str, is_forged: bool, is_well_formed: bool) -> Action:
    is_well_formed = is_well_formed and not is_forged
    if tag == "answer":
        answer = content.strip()
        return Action(
            kind=ActionKind.ANSWER,
            answer=answer,
            error=None if answer else "the answer is empty",
            is_well_formed=is_well_formed,
            is_forged=is_forged,
        )
    query = Query(text=clean_query(content))
    return Action(
        kind=ActionKind.SEARCH,
        queries=(query,),
        error=None if query.text else "the query is empty",
        is_well_formed=is_well_formed,
        is_forged=is_forged,
    )


def _first_action(reply: str) -> tuple[str, str] | None:
    """Return tag and content of the first action outside thoughts, or None."""
    tags = [
        _Tag(found.group(1) == "/", found.group(2).lower(), *found.span())
        for found in islice(_TAG.finditer(reply), _MAX_TAGS)
    ]
    at = _after_given_thoughts(tags)
    never_closed: set[str] = set()
    while at < len(tags):
        tag, at = tags[at], at + 1
        if tag.is_closing or tag.name == "information" or tag.name in never_closed:
            continue
        closing = _closing(tags, tag.name, at)
        if closing is None and tag.name == "think":
            return None
        if closing is None:
            never_closed.add(tag.name)
        elif tag.name != "think":
            return tag.name, reply[tag.end : tags[closing].start]
        else:
            at = closing + 1
    return None


def _after_given_thoughts(tags: Sequence[_Tag]) -> int:
    """Return the index of the first tag after thoughts opened by the prompt; 0 without any."""
    for number, tag in enumerate(tags):
        if tag.name == "think":
            return number + 1 if tag.is_closing else 0
    return 0


def _closing(tags: Sequence[_Tag], name: str, at: int) -> int | None:
    for number in range(at, len(tags)):
        if tags[number].is_closing and tags[number].name == name:
            return number
    return None


def _has_forged(reply: str) -> bool:
    lowered = reply.lower()  # quick check: nearly all replies contain neither word
    if "information" not in lowered and "tool_response" not in lowered:
        return False
    return _FORGED.search(reply) is not None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield tag and content of the exact pairs, from left to right."""
    at, never_closed = 0, set[str]()
    while found := _FIRST_PAIR.search(text, at):
        tag, at = found.group(1), found.end()
        if tag in never_closed:
            continue
        close = text.find(f"</{tag}>", at)
        if close < 0:
            never_closed.add(tag)
            continue
        yield tag, text[at:close]
        at = close + len(f"</{tag}>")


def _cut(reply: str) -> str:
    for mark in ("</search>", "</answer>"):
        end = reply.find(mark)
        if end >= 0:
            return reply[: end + len(mark)]
    return reply


def _is_well_formed(reply: str, *, is_think_given: bool) -> bool:
    """Return whether a reply is thoughts, one action, and white space only.

    Args:
        reply: The reply.
        is_think_given: True also accepts a reply without `<think>`: some templates write it
            already.
    """
    parts = _EXACT_TAG.split(reply, maxsplit=5)  # text, tag, text, ..., tag, text
    tags, texts = parts[1::2], parts[0::2]
    if is_think_given and len(tags) == 3:
        tags, texts = ["<think>", *tags], ["", *texts]
    if len(tags) != 4 or tags not in _TURN_SHAPES.values():
        return False
    return not (texts[0].strip() or texts[2].strip() or texts[4].strip())


def _call_action(
    calls: tuple[ToolCall, ...], tools: tuple[ToolSpec, ...], is_forged: bool, *, is_clean: bool
) -> Action:
    run = calls[:MAX_QUERIES]
    for call in run:
        errors = call_errors(call, tools)
        if errors:
            return replace(_nothing(errors[0], is_forged=is_forged), call=call)
    queries = tuple(_query_of(call.arguments) for call in run)
    is_empty = any(not query.text for query in queries)
    return Action(
        kind=ActionKind.SEARCH,
        queries=queries,
        error="the query is empty" if is_empty else None,
        is_well_formed=is_clean and not is_forged,
        is_forged=is_forged,
        call=run[0],
        dropped_calls=len(calls) - len(run),
    )


def _query_of(arguments: dict[str, Any]) -> Query:
    return Query(text=clean_query(arguments["query"]), topk=arguments.get("topk"))
