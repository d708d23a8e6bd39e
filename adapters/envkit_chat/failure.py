"""How a single call of a chat endpoint, or of a judge's model, fails."""


class CallFailure(Exception):  # an attempt's failure; the fault comes after the last
    """One attempt failed. The caller decides whether to try again, and makes it a fault if not."""

    def __init__(
        self,
        message: str,
        *,
        is_retryable: bool,
        retry_after_s: float | None = None,
        status: int | None = None,
        is_unreachable: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable
        """Whether the same call may succeed later."""
        self.retry_after_s = retry_after_s
        """Seconds that the server asked to wait; None when it did not say."""
        self.status = status
        """HTTP status of the answer; None if there was no answer."""
        self.is_unreachable = is_unreachable
        """Whether no connection could be made, or it broke."""
