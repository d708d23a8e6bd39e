"""A session of the Linux desktop as the desk of an OSWorld task."""

import time
from collections.abc import Sequence
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind
from envkit_actions.action import Action, ActionKind
from envkit_linux_desktop.osworld.playing import Finished
from envkit_linux_desktop.performing import Performer
from envkit_linux_desktop.session import Session

_WINDOW_SECONDS: Final = 20.0
_QUIET_SECONDS: Final = 0.4
_WHEEL_PIXELS: Final = 120
_DASHES: Final = str.maketrans({"\u2013": "-", "\u2014": "-"})
"""LibreOffice's titles have another dash than OSWorld's from version 7.5 on."""


class SessionDesk:
    """Carries out a task's steps on a session."""

    def __init__(self, session: Session, performer: Performer) -> None:
        """Take a session and what gives it input."""
        self._session, self._performer = session, performer

    def put(self, path: str, data: bytes) -> None:
        """Write a file of the home folder."""
        self._session.put({path: data})

    def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the first bytes of a regular file; None if there is no such file."""
        return self._session.home.read(path, limit=limit)

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Return the names in a folder; none if it cannot be listed."""
        return self._session.home.names(folder) or ()

    def run(self, command: Sequence[str], *, seconds: float) -> Finished:
        """Run a command to its end."""
        desk = self._session.desk
        assert desk is not None
        done = desk.run(command, seconds=seconds)
        texts = [data.decode("utf-8", "replace") for data in (done.output, done.errors)]
        return Finished(code=done.code, stdout=texts[0], stderr=texts[1])

    def launch(self, command: Sequence[str]) -> None:
        """Start a program and wait for its window."""
        self._session.open(command)

    def press(self, keys: Sequence[str]) -> None:
        """Press keys as one chord."""
        self._perform(ActionKind.KEY, keys=tuple(keys))

    def write(self, text: str) -> None:
        """Type a text."""
        self._perform(ActionKind.TYPE, text=text)

    def click(self, x: int | None, y: int | None, times: int) -> None:
        """Click; None means the centre of the screen."""
        screen = self._session.screen
        place = {
            "x": screen.width // 2 if x is None else x,
            "y": screen.height // 2 if y is None else y,
        }
        kind = ActionKind.CLICK if times == 1 else ActionKind.DOUBLE_CLICK
        self._perform(kind, **place)

    def scroll(self, clicks: int) -> None:
        """Turn the wheel; positive is up."""
        self._perform(ActionKind.SCROLL, dy=-clicks * _WHEEL_PIXELS)

    def activate(self, title: str, *, strict: bool) -> None:
        """Wait for a window and bring it to the front."""
        identity = self._find(title, strict=strict, seconds=_WINDOW_SECONDS)
        if identity is not None:
            self._ask_manager(identity, "_NET_ACTIVE_WINDOW", [2, 0, 0])

    def close_window(self, title: str, *, strict: bool) -> None:
        """Close a window if it is there."""
        identity = self._find(title, strict=strict, seconds=0.0)
        if identity is not None:
            self._ask_manager(identity, "_NET_CLOSE_WINDOW", [0, 2, 0])

    def wait(self, seconds: float) -> None:
        """Let the session run."""
        time.sleep(seconds)
        self._session.check()

    def _perform(self, kind: ActionKind, **fields: Any) -> None:  # noqa: ANN401  # of Action
        note = self._performer.perform(Action(kind=kind, **fields))
        if note is not None:
            raise EnvFault(f"a task's input cannot be given: {note}", kind=FaultKind.PERMANENT)
        # The steps before grading save a document: damage ends when it has been written.
        self._session.screen.settle(quiet=_QUIET_SECONDS, limit=5.0, least=_QUIET_SECONDS)

    def _find(self, title: str, *, strict: bool, seconds: float) -> int | None:
        wanted, until = title.translate(_DASHES), time.monotonic() + seconds
        while True:
            for identity, shown in self._session.screen.windows():
                name = shown.translate(_DASHES)
                if name == wanted if strict else wanted in name:
                    return identity
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)

    def _ask_manager(self, identity: int, message: str, data: list[int]) -> None:
        from Xlib import X
        from Xlib.protocol import event

        screen = self._session.screen
        with screen.faults():
            root = screen.x.screen().root
            window = screen.x.create_resource_object("window", identity)
            order = event.ClientMessage(
                window=window,
                client_type=screen.x.intern_atom(message),
                data=(32, [*data, 0, 0]),
            )
            root.send_event(order, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
            screen.x.sync()
        screen.settle(quiet=0.1, limit=2.0, least=0.1)
