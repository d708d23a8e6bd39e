"""A judge on any envkit engine, such as the one being trained."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from envkit.errors import EngineFault, ImageError, TemplateError
from envkit.messages import Message
from envkit.reply import Reply
from envkit.rollout.engine import Engine, Sampling, sample_once
from envkit.tokens import ChatCodec
from envkit.tokens.thoughts import TAIL_IDS, opened_thought


class EngineModel:
    """The model behind an engine. The schema is not enforced: the reply is checked afterwards."""

    def __init__(self, engine: Engine, codec: ChatCodec, *, name: str | None = None) -> None:
        """Wrap an engine; the caller closes it.

        Args:
            engine: Samples the replies.
            codec: The model's codec, with its processor if images are shown.
            name: Identifies this model in the cache; None uses the engine's name. A model whose
                weights change needs a new name, or a judge without a cache.
        """
        self._engine, self._codec = engine, codec
        self._name = name or engine.name

    @property
    def identity(self) -> str:
        """The given name."""
        return f"{self._name} in this process"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, schema: Mapping[str, Any]
    ) -> str:
        """Sample one reply.

        Raises:
            EngineFault: The engine failed, or the chat template cannot express the question.
        """
        try:
            prompt = await asyncio.to_thread(self._codec.encode_prompt, messages, tools=())
        except (TemplateError, ImageError) as error:
            raise EngineFault(f"the question cannot be encoded: {error}") from error
        try:
            generation = await sample_once(self._engine, prompt, sampling.for_codec(self._codec))
        except EngineFault as fault:
            raise fault.reworded(f"engine {self._engine.name!r} failed: {fault}") from fault
        said = Reply(
            text=self._codec.decode(generation.token_ids),
            finish=generation.finish_reason,
            opened=opened_thought(self._codec, prompt.wire_ids[-TAIL_IDS:]) or "",
        )
        return said.final

    async def aclose(self) -> None:
        """Do nothing: the caller closes the engine."""
