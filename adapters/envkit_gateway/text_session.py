"""An agent's episode with a chat endpoint, which reads messages and returns text."""

from typing import Final

from envkit.errors import EngineFault, FaultKind
from envkit.messages import Message, images_of
from envkit.rollout.engine import Generation
from envkit.rollout.limits import ReplyBudget
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.tokens import Encoded
from envkit.trajectory.stop import FaultPlace, FaultRecord
from envkit_gateway.codecs import Codecs
from envkit_gateway.messages import PromptForm, codec_messages
from envkit_gateway.request import TOO_LONG, AgentRequest, RequestRefused, bad_request
from envkit_gateway.session import Session
from envkit_gateway.turn import Turn

_TOO_LONG: Final = (TOO_LONG, "maximum context length", "prompt is too long")
"""What OpenAI, vLLM and SGLang, and Anthropic say of a conversation beyond the context."""


class _EndpointCodecs(Codecs):
    """Renders nothing: the endpoint has the chat template."""

    async def prepare(self, request: AgentRequest) -> None:
        """Prepare nothing."""

    def start_text(self, request: AgentRequest) -> str:
        """Return the tools."""
        return request.tools_text

    def messages(self, request: AgentRequest, covered: int) -> list[Message]:
        """Return the messages in the form that endpoints take."""
        form = PromptForm(merges_developer=False)
        return codec_messages(request.messages, covered=covered, form=form, leads_with_system=False)


class TextSession(Session):
    """Sends the agent's own messages to the endpoint. The record has no ledger."""

    codecs = _EndpointCodecs

    def token_text(self, token: int) -> str:
        """Return nothing: no token is known."""
        return ""

    async def prompt(self, request: AgentRequest) -> Encoded:
        """Refuse to count: only the endpoint knows its tokenizer."""
        raise RequestRefused(404, "a chat endpoint counts no tokens")

    async def _encode(self, turn: Turn, covered: int) -> ReplyBudget:
        request = turn.request
        if request.continues_reply:
            raise bad_request("a chat endpoint starts a new message: leave out the start of one")
        sequence, record = turn.sequence, turn.sequence.record
        whole = self._codecs.messages(request, 0)
        record.messages += self._codecs.messages(request, covered)
        if not sequence.turns:
            sequence.prompt = list(record.messages)
        record.view = whole
        sequence.turns.append(turn)
        self.counts["new" if turn.parent is None else "continued"] += 1
        images = len(images_of(whole))
        return self._room(request, context_tokens=0, response_tokens=0, images=images)

    def _add_reply(self, record: EpisodeRecord, draft: TurnDraft, generation: Generation) -> str:
        return generation.text or ""

    def _note(self, turn: Turn, error: BaseException) -> None:
        """Pass the endpoint's refusal on to the agent, which may shorten its history."""
        if not (isinstance(error, EngineFault) and error.kind is FaultKind.PERMANENT):
            super()._note(turn, error)
            return
        if any(words in str(error) for words in _TOO_LONG):
            turn.error = bad_request(str(error), code=TOO_LONG)
        else:
            turn.error = bad_request(str(error))
            self.refusal = FaultRecord.of(FaultPlace.GENERATE, error)
