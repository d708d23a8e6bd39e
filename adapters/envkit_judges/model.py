"""What a judge asks: anything that completes a conversation."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envkit.messages import Message
from envkit.rollout.engine import Sampling


class JudgeModel(Protocol):
    """A language model behind an engine or an endpoint. One call is one attempt."""

    @property
    def identity(self) -> str:
        """Names the model and where it runs: part of a cached answer's key, and of errors."""
        ...

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, schema: Mapping[str, Any]
    ) -> str:
        """Return the model's reply.

        Args:
            messages: The conversation, with images if there are some.
            sampling: Temperature, length and seed.
            schema: JSON Schema of the reply, for models that can be held to one.

        Raises:
            CallFailure: There is none. Deadlines and retries are the caller's.
        """
        ...

    async def aclose(self) -> None:
        """Release connections; safe to call twice."""
        ...
