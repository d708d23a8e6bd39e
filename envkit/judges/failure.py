"""How a single call of a judge's model fails."""


class CallFailure(Exception):  # an attempt's failure; the fault comes after the last
    """One attempt failed. Inside the judge only: after the last one it raises an `EnvFault`."""

    def __init__(
        self, message: str, *, is_retryable: bool, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable
        """Whether the same call may succeed later."""
        self.retry_after_s = retry_after_s
        """Seconds that the server asked to wait; None when it did not say."""
