"""Merge separate key-down and key-up calls into actions that hold the keys."""

from dataclasses import replace
from typing import Final

from envkit_actions.action import Action, ActionKind
from envkit_actions.keys import canonical_key, chord
from envkit_actions.malformed import MalformedActionError

_HOLDING: Final = (
    ActionKind.CLICK,
    ActionKind.DOUBLE_CLICK,
    ActionKind.TRIPLE_CLICK,
    ActionKind.DRAG,
    ActionKind.SCROLL,
)


class HeldKeys:
    """The keys held down between calls of one reply.

    A click carries them, a key press adds to them, a wait holds them; keys pressed and released
    with nothing in between form one chord.
    """

    def __init__(self) -> None:
        self._down: list[str] = []
        self._is_used = True

    def press(self, name: str) -> None:
        """Put a key down.

        Raises:
            MalformedActionError: There is no such key.
        """
        key = canonical_key(name)
        if key not in self._down:
            self._down.append(key)
            self._is_used = False

    def release(self, name: str) -> list[Action]:
        """Release a key; return the chord if no action used it.

        Raises:
            MalformedActionError: There is no such key.
        """
        key = canonical_key(name)
        if key not in self._down:
            return []
        pressed = Action(kind=ActionKind.KEY, keys=chord(self._down))
        self._down.remove(key)
        if self._is_used:
            return []
        self._is_used = True
        return [pressed]

    def applied(self, action: Action) -> Action:
        """Return an action with the held keys applied.

        Raises:
            MalformedActionError: It cannot be done while keys are down.
        """
        if not self._down or action.kind is ActionKind.MOVE:
            return action
        self._is_used = True
        held = tuple(self._down)
        if action.kind in _HOLDING:
            return replace(action, keys=held)
        if action.kind is ActionKind.KEY:
            return replace(action, keys=chord([*held, *action.keys]))
        if action.kind is ActionKind.WAIT:
            return Action(kind=ActionKind.HOLD_KEY, keys=held, seconds=action.seconds)
        raise MalformedActionError(
            f"{'+'.join(held)} is still down: release it before {action.kind.value}"
        )

    def check_released(self) -> None:
        """Check that no key stays down at the end of a reply.

        Raises:
            MalformedActionError: A key is still down.
        """
        if self._down:
            raise MalformedActionError(
                f"{'+'.join(self._down)} is never released: release it in the same reply"
            )
