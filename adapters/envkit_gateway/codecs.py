"""What renders an episode's requests: its codec, with the variables that a request asks for."""

import asyncio
import json
from typing import Final

from envkit.errors import ConfigurationError, ImageError, TemplateError
from envkit.messages import Message
from envkit.threads.pool import WorkerPool
from envkit.tokens import ChatCodec
from envkit_gateway.messages import PromptForm, codec_messages
from envkit_gateway.request import AgentRequest, bad_request

UNRENDERABLE: Final = (TemplateError, ImageError, ConfigurationError, RecursionError)
"""What a request's own content raises; deep schemas exceed the interpreter's recursion limit."""
_MOST: Final = 8


class Codecs:
    """The codecs of one episode, by what its requests ask of the chat template."""

    def __init__(self, own: ChatCodec | None, pool: WorkerPool) -> None:
        """Begin with the codec of requests that ask for nothing.

        Args:
            own: The rollout's; None if an endpoint renders the requests.
            pool: Threads to make further ones.
        """
        self._own, self._pool = own, pool
        self._made: dict[str, asyncio.Task[ChatCodec]] = {}

    @property
    def own(self) -> ChatCodec:
        """The rollout's codec."""
        assert self._own is not None  # a `TextSession` does not ask for it
        return self._own

    async def prepare(self, request: AgentRequest) -> None:
        """Make the codec that renders a request.

        Raises:
            RequestRefused: The template cannot be encoded exactly in the way that it asks for.
        """
        if not request.asks_of_template:
            return
        making = self._made.get(request.asks_of_template)
        if making is None:
            # Each codec calibrates the template again, for up to a second.
            if len(self._made) >= _MOST:
                raise bad_request(
                    f"an episode may use {_MOST} different settings of the chat template"
                )
            making = asyncio.create_task(self._make(request))
            self._made[request.asks_of_template] = making
        # Other requests wait for the same codec.
        await asyncio.shield(making)

    async def _make(self, request: AgentRequest) -> ChatCodec:
        codec = self.own
        try:
            return await self._pool.computing.run(lambda: _codec_for(codec, request))
        except UNRENDERABLE as error:
            raise bad_request(f"the chat template takes no such variables: {error}") from error

    def of(self, request: AgentRequest) -> ChatCodec:
        """Return the codec of a request that was prepared."""
        asked = request.asks_of_template
        return self._made[asked].result() if asked else self.own

    def start_text(self, request: AgentRequest) -> str:
        """Return what a conversation depends on in addition to its messages."""
        variables = self.of(request).variables
        return f"{request.tools_text}{json.dumps(variables, sort_keys=True, default=repr)}"

    def messages(self, request: AgentRequest, covered: int) -> list[Message]:
        """Return a request's messages as its codec takes them.

        Args:
            request: A request that was prepared.
            covered: How many messages are recorded; only the others are returned.

        Raises:
            TemplateError: A new message changes the start of the conversation.
        """
        codec = self.of(request)
        served = codec.served
        form = PromptForm(
            takes_parts=served.takes_parts,
            flattens=served.flattens,
            leads_with_system=served.leads_with_system,
            knows_developer=served.knows_developer,
            takes_tool_images="tool" in codec.audit().image_roles,
        )
        written = codec_messages(
            request.messages,
            covered=covered,
            form=form,
            leads_with_system=request.leads_with_system,
        )
        return [codec.readable(entry, follows_call=covered == 0) for entry in written]

    async def close(self) -> None:
        """Wait for codecs that are being made."""
        await asyncio.gather(*self._made.values(), return_exceptions=True)


def _codec_for(codec: ChatCodec, request: AgentRequest) -> ChatCodec:
    """Return the codec with the variables that a request asks for."""
    variables = dict(request.variables)
    if request.stops_thinking:
        effort = codec.served.effort_without_thinking
        variables["reasoning_effort"] = effort
        variables.setdefault("enable_thinking", effort != "none")
    return codec.with_variables(variables)
