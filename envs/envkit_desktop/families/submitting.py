"""Tasks that end when a button submits them."""

from collections.abc import Iterator

from envkit_actions.action import Action
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.families.family import OVER, Data, Family
from envkit_desktop.widgets import Button


class SubmittedTask(Family):
    """A window "main" whose first button submits the task; Cancel ends it without submitting."""

    submit = "OK"

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """End the task by either button or by closing the window."""
        if event.window.name == "main" and (
            event.kind == "closing" or (event.kind == "clicked" and event.source.name in self._ends)
        ):
            desk.model |= {"sent": event.source.name == self.submit, OVER: True}
            return True
        return False

    @property
    def _ends(self) -> tuple[str, ...]:
        return self.submit, "Cancel"

    def press_submit(self, desk: Desktop) -> Iterator[Action]:
        """Press the first button."""
        yield from moves.press(desk, desk.find(Button, "main", self.submit))

    def sent(self, desk: Desktop) -> bool:
        """Return whether the task was submitted."""
        return desk.model.get("sent") is True
