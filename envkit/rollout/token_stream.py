"""The ids of one reply while an engine samples it."""

from collections.abc import Callable, Sequence

Report = Callable[[Sequence[int]], None]
"""Takes the ids that were sampled since the last call, on the event loop."""


class TokenStream:
    """The ids that an engine has reported for one reply, over all attempts to sample it.

    An attempt that fails starts over, unless somebody has seen text of it.
    """

    def __init__(self) -> None:
        """Prepare the stream; the sampler fills it."""
        self.ids: list[int] = []
        """The ids of the latest attempt so far."""
        self.attempts = 0
        """Changes whenever `ids` starts over."""
        self.is_shown = False
        """Whether somebody has seen a part of the reply, so that it cannot be sampled again."""
        self.listeners: list[Callable[[], None]] = []
        """Called after each report."""

    def discard(self) -> None:
        """Forget the ids of an attempt that failed."""
        self.attempts += 1
        self.ids = []

    def begin(self) -> Report:
        """Begin an attempt; return the function that takes its ids."""
        self.discard()
        ids = self.ids

        def report(more: Sequence[int]) -> None:
            if self.ids is ids:  # not an earlier attempt
                ids.extend(more)
                for listener in self.listeners:
                    listener()

        return report
