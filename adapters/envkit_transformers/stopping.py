"""Decide when a request is finished: stop tokens, stop strings, the budget."""

from collections.abc import Sequence
from typing import Any, Final

from envkit.errors import EngineFault
from envkit.rollout.engine import FinishReason, Sampling

_EXTRA_TOKENS: Final = 4


class StopRule:
    """Watches one request's sampled tokens."""

    __slots__ = ("_ids", "_strings", "_tokenizer", "_window", "budget")

    def __init__(
        self,
        sampling: Sampling,
        *,
        default_ids: Sequence[int],
        tokenizer: Any | None,  # noqa: ANN401  # a transformers tokenizer
        budget: int,
    ) -> None:
        """Prepare the rule.

        Args:
            sampling: The request's settings.
            default_ids: Stop tokens if the settings have none.
            tokenizer: Needed for stop strings only.
            budget: Maximum new tokens.

        Raises:
            EngineFault: There is no tokenizer for stop strings, or one is empty.
        """
        if sampling.stop and tokenizer is None:
            raise EngineFault("stop strings need a tokenizer; give the engine the model's")
        if "" in sampling.stop:
            raise EngineFault("a stop string must not be empty")
        self._ids = frozenset(sampling.stop_ids or default_ids)
        self._strings = sampling.stop
        self._tokenizer = tokenizer
        self.budget: int = budget
        """Maximum new tokens."""
        # A token is at least one byte, so a stop string lies within that many tokens; a few more
        # keep its first character away from the edge, where decoders drop spaces.
        longest = max((len(text.encode()) for text in sampling.stop), default=0)
        self._window = longest + _EXTRA_TOKENS

    def check(self, tokens: Sequence[int]) -> FinishReason | None:
        """Return why the request ends after the last of these tokens, or None to continue."""
        if tokens[-1] in self._ids or (self._strings and self._has_string(tokens)):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(tokens) >= self.budget else None

    def _has_string(self, tokens: Sequence[int]) -> bool:
        tokenizer: Any = self._tokenizer
        text: str = tokenizer.decode(list(tokens[-self._window :]), skip_special_tokens=False)
        return any(stop in text for stop in self._strings)
