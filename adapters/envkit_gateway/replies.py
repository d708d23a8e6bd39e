"""A sampled reply in the form that agents read: text, thinking, tool calls."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import envkit
from envkit.rollout.engine import FinishReason, Generation
from envkit.toolcalls import parse_tool_calls
from envkit_gateway.messages import AgentCall, AgentMessage
from envkit_gateway.request import AgentRequest
from envkit_gateway.turn import Reply

_CHUNK: Final = 64
"""Tokens that are decoded at once to find a place in a reply."""


def split_thoughts(said: envkit.Reply) -> tuple[envkit.Reply, envkit.Reply]:
    """Return the part of a reply with its thoughts, and the rest, which may hold calls.

    A thought ends where the answer begins: as in vLLM's parsers, later marks are text, so that text
    that a client has never becomes a thought. If it is not known whether the prompt opened a
    thought, all thoughts are taken out.
    """
    if not said.is_opening_known:
        return said, replace(said, text=said.answer, opened="", is_opening_known=True)
    end = 0
    for start, after in said.thought_spans:
        if said.text[end:start].strip():
            break
        end = after
    thoughts = replace(said, text=said.text[:end])
    return thoughts, replace(said, text=thoughts.answer + said.text[end:], opened="")


def reasoning_tokens(
    said: envkit.Reply, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> int:
    """Return how many sampled tokens are thoughts, with their marks.

    Args:
        said: The reply.
        token_ids: Its tokens.
        decode: Returns the text of tokens.
    """
    return sum(
        _tokens_up_to(end, token_ids, decode) - _tokens_up_to(start, token_ids, decode)
        for start, end in split_thoughts(said)[0].thought_spans
    )


def _tokens_up_to(
    place: int, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> int:
    """Return how many tokens write the first `place` characters."""
    at = length = 0
    while length < place and at < len(token_ids):
        chunk = token_ids[at : at + _CHUNK]
        size = len(decode(chunk))
        if length + size >= place:
            needed = (n for n in range(1, _CHUNK) if length + len(decode(chunk[:n])) >= place)
            return at + next(needed, len(chunk))
        at, length = at + len(chunk), length + size
    return at


def _stop_in(text: str, stops: Sequence[str]) -> tuple[str | None, str]:
    """Return the stop string that ended a reply, and what its last token says after it."""
    found = [(place, one) for one in stops if (place := text.find(one)) >= 0]
    if not found:
        return None, ""
    place, stop = min(found)
    return stop, text[place + len(stop) :]


def reply_of(
    said: envkit.Reply,
    generation: Generation,
    request: AgentRequest,
    *,
    number: int,
    reasoning_tokens: int = 0,
) -> Reply:
    """Return a reply in the form that all dialects share.

    A call that cannot be read stays text, because clients rewrite or reject malformed calls but
    return text unchanged. So does a call of a reply that was cut, which nobody may run.

    Args:
        said: The sampled text, without its stop token, and how it ended.
        generation: Its tokens, and why it ended.
        request: The request that it answers.
        number: Number of the turn, which determines the ids of calls, because some clients write
            them into the prompt. Ids have nine characters, because Mistral's templates accept no
            others.
        reasoning_tokens: How many of its tokens are thoughts.
    """
    stop_string, after = _stop_in(said.text, request.stop)
    is_cut = said.finish is FinishReason.LENGTH
    thoughts, rest = split_thoughts(said)
    thinking = thoughts.thinking
    body = rest.text.removeprefix("\n\n") if thinking else rest.text
    calls: tuple[AgentCall, ...] = ()
    is_bad = is_cut
    if request.tools and request.may_call:
        parsed = parse_tool_calls(rest, tools=request.tools)
        is_bad = is_bad or bool(parsed.errors)
        if parsed.calls and not parsed.errors:
            space = body[: len(body) - len(body.lstrip())]  # as without calls, which end it
            body = parsed.text and space + parsed.text
            spaces = {tool.name: tool.namespace for tool in request.tools}
            calls = tuple(
                AgentCall(
                    id=f"c{number % 100_000:05d}{n % 1000:03d}",
                    name=call.name,
                    arguments=json.dumps(call.arguments, ensure_ascii=False),
                    namespace=spaces.get(call.name, ""),
                )
                for n, call in enumerate(parsed.calls)
            )
    if stop_string is not None:
        body = body.removesuffix(after).removesuffix(stop_string)
    finish = "length" if is_cut else "tool_calls" if calls else "stop"
    message = AgentMessage(
        role="assistant",
        parts=({"type": "text", "text": body},) if body else (),
        calls=calls,
        thinking=thinking or None,
    )
    return Reply(
        message=message,
        finish=finish,
        stop_string=stop_string,
        is_bad=is_bad or not (body.strip() or calls),
        generation=generation,
        reasoning_tokens=reasoning_tokens,
    )
