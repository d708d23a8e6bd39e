"""Failure of a single call to a chat endpoint or a judge's model."""


class CallFailure(Exception):  # one attempt's failure; a fault is raised after the last attempt
    """One attempt failed. The caller retries or turns it into a fault."""

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
        """Seconds that the server asked to wait, if it did."""
        self.status = status
        """HTTP status; None without a response."""
        self.is_unreachable = is_unreachable
        """Whether the connection failed or broke."""
