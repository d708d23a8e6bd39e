"""Environments whose image is a clickable screen."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Clickable(Protocol):
    """An environment that can write the reply for a click."""

    def write_click(self, x: int, y: int) -> str:
        """Return the reply that clicks at a pixel of the last screenshot.

        Args:
            x: Pixels from the left.
            y: Pixels from the top.
        """
        ...
