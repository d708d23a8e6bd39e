"""The replies of a session: a forest of turns, and the sequences with their tokens."""

import asyncio
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from envkit.messages import Message
from envkit.rollout.engine import Generation
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.token_stream import TokenStream
from envkit_gateway.messages import AgentCall, AgentMessage
from envkit_gateway.request import AgentRequest


class TurnState(StrEnum):
    """The outcome of a request."""

    RUNNING = "running"
    DELIVERED = "delivered"
    """The client has the reply."""
    READ = "read"
    """The client had the whole reply, but left before the stream ended. If it asks the same again,
    it gets the reply."""
    LOST = "lost"
    """The client left before it had the whole reply. A retry gets it; otherwise it is untrained."""
    SUPERSEDED = "superseded"
    """The client rejected a bad reply and sampled another. Untrained."""
    FAILED = "failed"
    """Infrastructure gave no reply."""


class ForkReason(StrEnum):
    """Why a sequence does not continue an earlier one."""

    BRANCH = "branch"
    """A second request continued the same reply."""
    NEW_CONVERSATION = "new_conversation"
    """The request has no earlier reply."""
    REWRITTEN_HISTORY = "rewritten_history"
    """The request's earlier messages are not those that were recorded."""
    OTHER_SYSTEM_PROMPT = "other_system_prompt"
    OTHER_TOOLS = "other_tools"
    TEMPLATE = "template"
    """The chat template cannot render the request's new messages after a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A committed reply, as every dialect reports it."""

    message: AgentMessage
    finish: str
    """"stop", "length" or "tool_calls"."""
    stop_string: str | None
    is_bad: bool
    """Cut, empty, or with a call that cannot be read: clients may ask again."""
    generation: Generation
    reasoning_tokens: int = 0
    """Sampled tokens that are thoughts."""

    @property
    def calls(self) -> tuple[AgentCall, ...]:
        """The tool calls, with ids that the gateway chose."""
        return self.message.calls


@dataclass(eq=False, slots=True, kw_only=True)
class Live:
    """A reply that clients see while the engine samples it."""

    stream: TokenStream = field(default_factory=TokenStream)
    opened: str = ""
    """The mark with which the prompt opened a thought, or ""."""
    prompt_tokens: int = 0
    """Length of the prompt; 0 until it is sent."""


@dataclass(eq=False, slots=True)
class OpenSequence:
    """One sequence of tokens while the agent runs."""

    record: EpisodeRecord
    reason: ForkReason | None
    """None for the first one."""
    system: str
    """The system prompt."""
    tools: str
    """The tools as text."""
    has_tools: bool
    label: str
    """Name of the sub-agent, if the client's headers state it."""
    trunk: "Turn | None" = None
    """The last shared turn; None for a sequence with its own prompt."""
    shared: int = 0
    """Number of segments that it shares with the trunk's sequence."""
    prompt: list[Message] = field(default_factory=list[Message])
    """The conversation up to its first own reply."""
    turns: list["Turn"] = field(default_factory=list["Turn"])


@dataclass(eq=False, slots=True)
class Turn:
    """One request and its reply."""

    number: int
    """Number of the request in the session, including refused ones."""
    sequence: OpenSequence
    parent: "Turn | None"
    request: AgentRequest
    prefix: str
    """Key of the conversation that it answers."""
    place: int
    """Index of the reply among the conversation's messages."""
    encoded: "asyncio.Future[None]"
    """Done once the request is in the ledger; raises if it was refused."""
    live: Live | None = None
    """None if no client sees the reply before it ends."""
    state: TurnState = TurnState.RUNNING
    reply: Reply | None = None
    error: BaseException | None = None
    """Why there is no reply."""
    local: int = 0
    """Index in its sequence's turn records."""
    segments: int = 0
    """Segments of its sequence up to and including the reply."""
    said: int = 0
    """Messages of its sequence up to and including the reply."""
    is_extended: bool = False
    """Whether its sequence continues after it."""
    children: list["Turn"] = field(default_factory=list["Turn"])
    task: "asyncio.Task[None] | None" = None
    waiting: int = 0
    """Number of clients waiting for the reply."""

    @property
    def conversation(self) -> tuple[AgentMessage, ...]:
        """The messages up to and including the reply, which is one message with its start."""
        assert self.reply is not None  # the caller chose a turn that has one
        said, asked = self.reply.message, self.request.messages
        if not self.request.continues_reply:
            return (*asked, said)
        text = f"{asked[-1].text}{said.text}"
        return (*asked[:-1], replace(said, parts=({"type": "text", "text": text},)))


class Choice(NamedTuple):
    """One reply of an answer, which has several if the client asked for them."""

    turn: Turn
    reply: Reply
