"""Interface of judge models: anything that completes a conversation."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envkit.messages import Message
from envkit.rollout.engine import Sampling


class JudgeModel(Protocol):
    """A language model behind an engine or an endpoint. One call is one attempt."""

    @property
    def identity(self) -> str:
        """Name and location of the model, for cache keys and errors."""
        ...

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, schema: Mapping[str, Any]
    ) -> str:
        """Return the model's reply.

        Args:
            messages: The conversation, with images if any.
            sampling: Temperature, length and seed.
            schema: JSON Schema of the reply, for models that can enforce one.

        Raises:
            EngineFault: There is no reply. The caller handles deadlines and retries.
        """
        ...

    async def aclose(self) -> None:
        """Release connections; safe to call twice."""
        ...
