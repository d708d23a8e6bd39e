"""Random conversations whose histories clients rewrite, against what the gateway makes of them."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from fakes.agent_wire import body_of
from fakes.gateway_run import Silent
from fakes.odd_engine import OddEngine, assert_exact
from fakes.trajectories import picture

from envkit.images import Image
from envkit.messages import Part
from envkit.rollout.engine import Sampling
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Limits, RetryBudget
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.threads.pool import WorkerPool
from envkit.tokens import ChatCodec
from envkit.trajectory import StopReason, check_trajectory
from envkit_gateway import Session, anthropic, chat, responses
from envkit_gateway.messages import AgentCall, AgentMessage
from envkit_gateway.reading import read_tool
from envkit_gateway.recording import AgentEnd, trajectory_of
from envkit_gateway.request import AgentRequest
from envkit_gateway.turn import TurnState

Messages = list[AgentMessage]
TOOL = read_tool({"name": "add", "description": "Add."})
DIALECTS: tuple[Any, ...] = (chat, responses, anthropic)


def _text(text: str) -> tuple[Part, ...]:
    return ({"type": "text", "text": text},) if text else ()


def _replies(messages: Messages) -> list[int]:
    return [n for n, one in enumerate(messages) if one.role == "assistant"]


def _at(messages: Messages, place: int, **changes: object) -> Messages:
    changed = replace(messages[place], **changes)  # type: ignore[arg-type]
    return [*messages[:place], changed, *messages[place + 1 :]]


def stripped(messages: Messages, rng: random.Random) -> Messages:
    place = rng.choice(_replies(messages))
    return _at(messages, place, parts=_text(f"\n {messages[place].text.strip()}  "))


def without_thinking(messages: Messages, rng: random.Random) -> Messages:
    """Drop the last reply's: an earlier one may be quoted, and its thinking in the prompt."""
    return _at(messages, _replies(messages)[-1], thinking="")


def reserialised(messages: Messages, rng: random.Random) -> Messages:
    place = rng.choice(_replies(messages))
    calls = tuple(
        replace(one, arguments=json.dumps(json.loads(one.arguments), indent=rng.choice([1, None])))
        for one in messages[place].calls
    )
    return _at(messages, place, calls=calls)


def in_javascript(messages: Messages, rng: random.Random) -> Messages:
    """Write whole numbers without a point, as JavaScript does."""

    def number(text: str) -> float | int:
        value = float(text)
        return int(value) if value.is_integer() else value

    def again(call: AgentCall) -> AgentCall:
        return replace(call, arguments=json.dumps(json.loads(call.arguments, parse_float=number)))

    return [replace(one, calls=tuple(map(again, one.calls))) for one in messages]


def inlined(messages: Messages, rng: random.Random) -> Messages:
    """Write thinking into the text."""
    place = rng.choice(_replies(messages))
    one = messages[place]
    if one.text.strip().startswith("<think>"):
        return messages
    text = f"<think>\n{one.thinking or ''}\n</think>\n\n{one.text}"
    return _at(messages, place, thinking="", parts=_text(text))


def renamed(messages: Messages, rng: random.Random) -> Messages:
    mark = f"{rng.random()}"

    def rename(one: AgentMessage) -> AgentMessage:
        calls = tuple(replace(call, id=call.id + mark) for call in one.calls)
        return replace(one, calls=calls, call_id=one.call_id and one.call_id + mark)

    return [rename(one) for one in messages]


def reencoded(messages: Messages, rng: random.Random) -> Messages:
    def again(part: Part) -> Part:
        if part["type"] == "text":
            return part
        return {"type": "image", "image": Image.from_array(part["image"].array())}

    return [replace(one, parts=tuple(map(again, one.parts))) for one in messages]


def edited_reply(messages: Messages, rng: random.Random) -> Messages:
    place = rng.choice(_replies(messages))
    return _at(messages, place, parts=_text(messages[place].text + " Really."))


def edited_thinking(messages: Messages, rng: random.Random) -> Messages:
    other = f"Something else {rng.random()}."  # an earlier edit may have written the same
    return _at(messages, rng.choice(_replies(messages)), thinking=other)


def edited_inline(messages: Messages, rng: random.Random) -> Messages:
    place = _replies(messages)[-1]
    text = f"<think>\nSomething else.\n</think>\n\n{messages[place].text}"
    return _at(messages, place, thinking="", parts=_text(text))


def edited_context(messages: Messages, rng: random.Random) -> Messages:
    places = [n for n in range(_replies(messages)[-1]) if n not in _replies(messages)]
    if not places:
        return edited_reply(messages, rng)
    place = rng.choice(places)
    return _at(messages, place, parts=(*messages[place].parts, *_text(" ")))


def edited_call(messages: Messages, rng: random.Random) -> Messages:
    place = rng.choice(_replies(messages))
    calls = messages[place].calls
    other = (*calls, AgentCall(id="x", name="add", arguments='{"a": 9}'))
    return _at(messages, place, calls=other)


def dropped(messages: Messages, rng: random.Random) -> Messages:
    place = rng.randrange(_replies(messages)[-1])
    return [*messages[:place], *messages[place + 1 :]]


def other_image(messages: Messages, rng: random.Random) -> Messages:
    end = _replies(messages)[-1]
    users = [n for n in range(end) if messages[n].role == "user"]
    if not users:
        return edited_reply(messages, rng)
    parts = ({"type": "image", "image": picture(90)}, *messages[users[0]].parts)
    return _at(messages, users[0], parts=parts)


def _context(messages: Messages, *, least: int) -> list[int]:
    """Return the messages before the last reply that have several parts."""
    end = _replies(messages)[-1]
    return [n for n in range(end) if len(messages[n].parts) >= least]


def moved_part(messages: Messages, rng: random.Random) -> Messages:
    places = _context(messages, least=2)
    if not places:
        return edited_reply(messages, rng)
    place = rng.choice(places)
    first, *rest = messages[place].parts
    return _at(messages, place, parts=(*rest, first))


def split_part(messages: Messages, rng: random.Random) -> Messages:
    """Split a text, which some templates render without a line break."""
    places = [n for n in _context(messages, least=1) if len(messages[n].text) > 1]
    places = [n for n in places if n not in _replies(messages)]
    if not places:
        return edited_reply(messages, rng)
    place = rng.choice(places)
    *parts, last = messages[place].parts
    if last["type"] != "text" or len(last["text"]) < 2:
        return edited_reply(messages, rng)
    text = last["text"]
    return _at(messages, place, parts=(*parts, *_text(text[:1]), *_text(text[1:])))


def merged_parts(messages: Messages, rng: random.Random) -> Messages:
    """Merge two neighbouring texts, as they stand."""
    pairs = [
        (place, n)
        for place in _context(messages, least=2)
        for n, (one, other) in enumerate(pairwise(messages[place].parts))
        if one["type"] == other["type"] == "text"
    ]
    if not pairs:
        return edited_reply(messages, rng)
    place, n = rng.choice(pairs)
    parts = messages[place].parts
    joined = "".join(one["text"] for one in parts[n : n + 2] if one["type"] == "text")
    return _at(messages, place, parts=(*parts[:n], *_text(joined), *parts[n + 2 :]))


def moved_to_another(messages: Messages, rng: random.Random) -> Messages:
    """Move the last part of a message to the beginning of another one."""
    places = _context(messages, least=2)
    users = [n for n in range(_replies(messages)[-1]) if messages[n].role == "user"]
    others = [(source, target) for source in places for target in users if source != target]
    if not others:
        return edited_reply(messages, rng)
    source, target = rng.choice(others)
    *kept, moved = messages[source].parts
    found = _at(messages, source, parts=tuple(kept))
    return _at(found, target, parts=(moved, *messages[target].parts))


SAME: tuple[Callable[[Messages, random.Random], Messages], ...] = (
    stripped, without_thinking, reserialised, in_javascript, inlined, renamed, reencoded,
)  # fmt: skip
"""Rewritings that mean the same: the last reply is continued."""
OTHER: tuple[Callable[[Messages, random.Random], Messages], ...] = (
    edited_reply, edited_thinking, edited_inline, edited_context, edited_call, dropped, other_image,
    moved_part, moved_to_another, split_part, merged_parts,
)  # fmt: skip
"""Rewritings that mean something else: the last reply is not continued."""


async def run_conversation(
    codec: ChatCodec, seed: int, pool: WorkerPool, counts: Counter[str]
) -> None:
    """Hold a conversation of random rewritings and check its record.

    Args:
        codec: Of the model.
        seed: Chooses the rewritings and the dialect.
        pool: Threads for tokenization and images.
        counts: Gets the outcomes.
    """
    rng = random.Random(seed)
    engine = OddEngine(codec, lambda _: _reply(rng))
    setup = Setup(
        engine=engine, codec=codec, limits=Limits(), retries=RetryBudget(),
        sampling=Sampling(max_new_tokens=500),
    )  # fmt: skip
    spec = EpisodeSpec(env_id="campaign", seed=seed)
    session = Session(setup, spec, pool, Interrupt(), env=Silent())
    dialect = DIALECTS[seed % len(DIALECTS)]
    messages: Messages = [AgentMessage(role="user", parts=_parts(rng, "start"))]

    def asked(key: str) -> AgentRequest:
        """Read the conversation as the dialect's client writes it."""
        request: AgentRequest = dialect.read(body_of(dialect, messages, TOOL), tuple(session.turns))
        return request.of_client(key=key, is_retry=False, label="")

    for number in range(8):
        (turn,) = await session.open(asked(f"{number}"))
        assert turn.task is not None
        await turn.task
        assert turn.reply is not None
        turn.state = TurnState.DELIVERED
        history = [*messages, turn.reply.message]
        change = rng.choice((*SAME, *OTHER))
        sent = change(history, rng)
        messages = [*sent, *_answers(sent, rng)]
        (follow,) = await session.open(asked(f"{number} follow"))
        assert follow.task is not None
        await follow.task
        assert follow.reply is not None, follow.error
        follow.state = TurnState.DELIVERED
        is_continued = follow.parent is turn
        counts[f"{change.__name__}: {'continued' if is_continued else 'new'}"] += 1
        is_same = change in SAME or _read(dialect, sent) == _read(dialect, history)
        # Responses do not tell to which of two neighbouring replies a thought belongs.
        may_fork = dialect is responses and _has_neighbours(sent)
        assert is_continued is is_same or (may_fork and is_same), (seed, number, change.__name__)
        messages += [follow.reply.message]
        messages += _answers(messages, rng)
    await session.close()
    outcome = AgentEnd(stop_reason=StopReason.TERMINATED, reward=0.0)
    trajectory = trajectory_of(session, outcome, EpisodeRecord())
    assert check_trajectory(trajectory) == ()
    assert_exact(trajectory, engine)
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    counts["requests"] += len(session.turns)
    counts["sequences"] += len(trajectory.sequences())


def _has_neighbours(messages: Messages) -> bool:
    return any(one.role == other.role == "assistant" for one, other in pairwise(messages))


def _read(dialect: Any, messages: Messages) -> list[Any]:
    """Return what a dialect tells of messages: Anthropic's joins a result's texts, for example."""
    asked = [*messages, AgentMessage(role="user", parts=_text("?"))]
    request: AgentRequest = dialect.read(body_of(dialect, asked, TOOL), ())
    return [
        (one.role, [*map(_shown, one.parts)], one.calls, one.call_id, one.thinking)
        for one in request.messages
    ]


def _shown(part: Part) -> str:
    return part["text"] if part["type"] == "text" else part["image"].sha256


def _reply(rng: random.Random) -> str:
    call = (
        '<tool_call>\n{"name": "add", "arguments": {"b":  2.0, "a": [1, "\\u00e9"]}}\n</tool_call>'
    )
    text = rng.choice(["  It is done. \n", "<think>Think.\n</think>\n\nDone.", "ok", "Done \u00e9"])
    return f"{text}{call}" if rng.random() < 0.5 else text


def _image(rng: random.Random) -> tuple[Part, ...]:
    return ({"type": "image", "image": picture(rng.randrange(4))},) if rng.random() < 0.3 else ()


def _parts(rng: random.Random, text: str) -> tuple[Part, ...]:
    more = _text("And now:") if rng.random() < 0.3 else ()
    return (*_image(rng), *_text(text), *more, *_image(rng))


def _answers(messages: Sequence[AgentMessage], rng: random.Random) -> Messages:
    """Return results for the open calls, or a user message; sometimes with a system message."""
    calls = messages[-1].calls if messages[-1].role == "assistant" else ()
    notes = [AgentMessage(role="system", parts=_text("Note."))] if rng.random() < 0.1 else []
    if not calls:
        return [*notes, AgentMessage(role="user", parts=_parts(rng, "go on"))]
    results = [AgentMessage(role="tool", parts=_parts(rng, "3"), call_id=one.id) for one in calls]
    return [*results, *notes]
