"""What can go wrong at a fake server, drawn from one seed or written down in order."""

import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic, TypeVar


class Failure(StrEnum):
    """One way for a `/generate` request to fail."""

    BAD_GATEWAY = "502"
    """A router that lost its worker."""
    UNAVAILABLE = "503"
    """The queue is full, or the server is shutting down."""
    GATEWAY_TIMEOUT = "504"
    INTERNAL = "500"
    """An unexpected exception; plain text."""
    RESET = "reset"
    """The connection is dropped before the answer."""
    RESET_MID_BODY = "reset_mid_body"
    """The connection is dropped in the middle of the answer."""
    HANG = "hang"
    """No answer until the client gives up."""
    SLOW = "slow"
    """A right answer after `FakeSGLang.slow_s`."""
    NOT_JSON = "not_json"
    """Status 200 with a page of HTML."""
    WRONG_PROMPT_TOKENS = "wrong_prompt_tokens"
    """A right answer to another prompt: one token more than was sent."""
    MISSING_LOGPROB = "missing_logprob"
    """An answer with a log-probability less than tokens."""
    QUEUE_ABORT = "queue_abort"
    """The server aborts the request while it waits: no prompt_tokens, no tokens."""


Kind = TypeVar("Kind", bound=StrEnum)


class Draws(Generic[Kind]):
    """Says what happens to each request in turn; None is success."""

    def __init__(
        self,
        *,
        script: Sequence[Kind | None] = (),
        rates: Mapping[Kind, float] | None = None,
        seed: int = 0,
    ) -> None:
        """Fail by the script first, then at random.

        Args:
            script: For the first requests, in order of arrival.
            rates: Probability of each failure for every later request.
            seed: Of the draws.
        """
        self._script = list(script)
        self._rates = dict(rates or {})
        self._rng = random.Random(seed)
        self.drawn: list[Kind | None] = []
        """What was drawn so far, in order."""

    def draw(self) -> Kind | None:
        """Return what happens to the next request."""
        failure = self._script.pop(0) if self._script else self._random()
        self.drawn.append(failure)
        return failure

    def _random(self) -> Kind | None:
        point = self._rng.random()
        for failure, rate in self._rates.items():
            point -= rate
            if point < 0:
                return failure
        return None


class FailurePlan(Draws[Failure]):
    """What happens to the requests of a fake engine."""
