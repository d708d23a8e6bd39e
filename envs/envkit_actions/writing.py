"""Access to an action's fields for writers, which reject what their family cannot express."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.keys import KeyColumn, chord, key_names, split_chord
from envkit_actions.malformed import InexpressibleActionError, MalformedActionError
from envkit_actions.spaces import CoordinateSpace

SELECT_ALL: Final = Action(kind=ActionKind.KEY, keys=("ctrl", "a"))
DELETE: Final = Action(kind=ActionKind.KEY, keys=("delete",))
WHEEL_CLICK: Final = 120
"""Pixels scrolled per wheel click."""
Place = list[int | float]
"""x and y in the units of a space."""
T = TypeVar("T")


class Writing:
    """One action to be written in a family's dialect.

    Every method raises `InexpressibleActionError` if the family's form cannot hold a field.
    """

    def __init__(self, family: str, action: Action, space: CoordinateSpace) -> None:
        self._family = family
        self.action = action
        self.space = space

    def refusal(self, why: str) -> InexpressibleActionError:
        """Return the error that says why the action cannot be expressed."""
        return InexpressibleActionError(
            f"{self._family} cannot express {self.action.kind.value}: {why}"
        )

    def by_kind(self, writers: Mapping[ActionKind, "Callable[[Writing], T]"], why: str) -> T:
        """Return what the writer of the action's kind writes; `why` the others cannot be said."""
        write = writers.get(self.action.kind)
        if write is None:
            raise self.refusal(why)
        return write(self)

    def plain(self, *, button: bool = False, keys: bool = False) -> Action:
        """Return the action after checking the fields that its form cannot hold.

        Args:
            button: Whether the form can name buttons other than the left.
            keys: Whether it can name keys.
        """
        if not button and self.action.button is not Button.LEFT:
            raise self.refusal(f"only with the left button, got {self.action.button.value}")
        if not keys and self.action.keys:
            raise self.refusal(f"no keys may be held meanwhile, got {'+'.join(self.action.keys)}")
        return self.action

    @property
    def at_cursor(self) -> bool:
        """Whether the action happens at the cursor."""
        return self.action.x is None or self.action.y is None

    def point(self) -> Place:
        """Return where the action happens."""
        if self.action.x is None or self.action.y is None:
            raise self.refusal("it needs a place, got x=None and y=None")
        return self._place(self.action.x, self.action.y)

    def path(self) -> list[Place]:
        """Return the points after the start."""
        if not self.action.path:
            raise self.refusal("it needs a point to go to, got an empty path")
        return [self._place(*point) for point in self.action.path]

    def _place(self, x: int, y: int) -> Place:
        if self.action.is_relative:
            raise self.refusal("its places count from the corner of the screen, not the cursor")
        return list(self.space.from_screen(x, y))

    def end(self) -> Place:
        """Return the only point after the start."""
        if len(self.action.path) != 1:
            raise self.refusal(f"it takes one point to go to, got {len(self.action.path)}")
        return self.path()[0]

    def keys(self, column: KeyColumn) -> list[str]:
        """Return the family's names of the keys, at least one."""
        names = key_names(self.action.keys, column)
        self._check_keys(names)
        return names

    def holding(self, lines: Sequence[str], column: KeyColumn, down: str, up: str) -> list[str]:
        """Return lines between calls of two functions that press and release the held keys."""
        keys = self.keys(column) if self.action.keys else []
        pressed = [f"{down}({key!r})" for key in keys]
        return [*pressed, *lines, *(f"{up}({key!r})" for key in reversed(keys))]

    def joined_keys(self, column: KeyColumn, separator: str = "+") -> str:
        """Join the names in one string that splits back into them."""
        text = separator.join(self.keys(column))
        self._check_keys(split_chord(text))
        return text

    def _check_keys(self, names: list[str]) -> None:
        try:
            keys = chord(names)
        except MalformedActionError as error:
            raise self.refusal(str(error)) from None
        if keys != self.action.keys:
            raise self.refusal(f"its keys would be read as {'+'.join(keys)}")

    def seconds(self, fixed: float) -> None:
        """Check that the duration equals the family's fixed one."""
        if self.action.seconds != fixed:
            raise self.refusal(f"it always lasts {fixed:g} seconds, got {self.action.seconds:g}")

    def one_axis(self) -> tuple[str, int]:
        """Return the direction of a scroll, "up", "down", "left" or "right", and its pixels."""
        dx, dy = self.action.dx, self.action.dy
        if dx and dy:
            raise self.refusal(f"it goes along one axis at a time, got dx={dx} and dy={dy}")
        if dx:
            return ("right" if dx > 0 else "left"), abs(dx)
        return ("up" if dy < 0 else "down"), abs(dy)

    def wheel_clicks(self) -> tuple[str, int]:
        """Return the direction of a scroll and its whole wheel clicks."""
        direction, pixels = self.one_axis()
        if pixels % WHEEL_CLICK:
            raise self.refusal(f"it counts clicks of {WHEEL_CLICK} pixels, got {pixels} pixels")
        return direction, pixels // WHEEL_CLICK


def direction_pixels(direction: str, pixels: int) -> tuple[int, int]:
    """Return dx and dy of a scroll in a direction."""
    if direction in ("left", "right"):
        return (pixels if direction == "right" else -pixels), 0
    return 0, (pixels if direction == "down" else -pixels)


def replacing(text: str) -> list[Action]:
    """Return what replaces the text of the field that has the focus."""
    return [SELECT_ALL, Action(kind=ActionKind.TYPE, text=text) if text else DELETE]


def replaced(actions: Sequence[Action]) -> str | None:
    """Return the text if `replacing` starts the actions with it; else None."""
    text = actions[1].text if len(actions) > 1 else ""
    return text if list(actions[:2]) == replacing(text) else None
