"""How replies become actions and actions become replies: the only way to `actions`."""

from collections.abc import Sequence
from typing import Final

from envkit.errors import UnknownNameError
from envkit_computer_use.actions import canonical
from envkit_computer_use.actions.action import Action

DIALECTS: Final = ("canonical",)
"""Names of the forms that a reply may have."""

_PROMPT: Final = """Write one JSON object, or a list of them, with "action" and its arguments:
{"action": "click", "x": 10, "y": 20, "button": "left"} (also double_click, triple_click, move)
{"action": "drag", "x": 10, "y": 20, "to": [30, 40]}
{"action": "scroll", "x": 10, "y": 20, "dy": 120}
{"action": "type", "text": "..."} and {"action": "key", "keys": ["ctrl", "c"]}
{"action": "wait", "seconds": 1}
{"action": "answer", "text": "..."} and {"action": "terminate", "status": "success" or "failure"}
Coordinates are pixels of the screenshot, which is WIDTHxHEIGHT."""


class Dialect:
    """One form of replies, for a screen of one size."""

    def __init__(self, name: str, width: int, height: int) -> None:
        """Choose the form.

        Args:
            name: One of `DIALECTS`.
            width: Of the screen, in pixels.
            height: Of the screen, in pixels.

        Raises:
            UnknownNameError: There is no such form.
        """
        if name not in DIALECTS:
            raise UnknownNameError.suggest("action family", name, DIALECTS)
        self._width, self._height = width, height

    @property
    def prompt(self) -> str:
        """What the model must be told."""
        return _PROMPT.replace("WIDTH", str(self._width)).replace("HEIGHT", str(self._height))

    def read(self, reply: str) -> canonical.ParsedActions:
        """Read a reply; never raises."""
        return canonical.parse(reply, width=self._width, height=self._height)

    def write(self, actions: Sequence[Action]) -> str:
        """Return a reply that reads back as the actions."""
        return canonical.write(actions)
