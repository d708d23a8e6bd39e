"""Screenshots: the canvas, change detection, and the encoded image.

Widgets do not report damage. The screen compares every widget's fields with the last screenshot, so
no change is missed. It repaints only changed boxes and re-encodes only their bands of rows. The
same comparison feeds the state hash.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from PIL import Image as PilImage

from envkit.images import Image
from envkit_desktop.banded_png import BandedPng
from envkit_desktop.desktop import Desktop
from envkit_desktop.painter import Box, Painter, intersect
from envkit_desktop.widgets import Widget
from envkit_desktop.widgets.widget import state_reader

_MAX_BOXES: Final = 6
"""Beyond this many damaged boxes, their bounding box is repainted."""
_FAR: Final = 4000
"""Pixels that are cheaper to repaint than another pass over the widgets."""
_POINTER: Final = 16
"""Size of the pointer in pixels."""


class _Seen(NamedTuple):
    """A widget as it was at the last screenshot."""

    kind: type[Widget]
    state: tuple[Any, ...]
    box: Box | None
    """Box on the screen; None if it is not visible."""
    written: bytes
    """The state, for the hash."""


class Screen:
    """Draws screenshots of one desktop."""

    def __init__(self, width: int, height: int, *, shows_pointer: bool = True) -> None:
        """Create an empty canvas of the given size in pixels."""
        self.canvas = PilImage.new("RGB", (width, height))
        self._box: Box = (0, 0, width, height)
        self._shows_pointer = shows_pointer
        self._encoder = BandedPng(width, height)
        self._seen: dict[int, _Seen] = {}
        self._frames: list[Box] = []  # of menus and the pointer, which are above all windows
        self._extras: tuple[Any, ...] = ()
        self._order: list[int] = []
        self._image: Image | None = None

    def shoot(self, desk: Desktop) -> Image:
        """Return the image of the desktop; the same object if nothing changed."""
        damage = self._compare(desk)
        if self._image is None:
            damage = [self._box]
        if damage or self._image is None:
            for box in _merge(damage):
                self._repaint(desk, box)
            data = self._encoder.encode(self.canvas, [(box[1], box[3]) for box in damage])
            self._image = Image.from_pil(self.canvas, png=data)
        return self._image

    def state_hash(self, desk: Desktop) -> str:
        """Return the SHA-256 of the state at the last `shoot`, in hexadecimal."""
        digest = hashlib.sha256(b"".join([seen.written for seen in self._seen.values()]))
        menus = [[m.window, m.owner, m.x, m.y, m.highlighted] for m in desk.menus]
        rest = [
            desk.clipboard,
            desk.clock,
            desk.pointer,
            menus,
            desk.model,
            len(desk.popups),
            desk.action_count,
        ]
        digest.update(json.dumps(rest, sort_keys=True).encode())
        return digest.hexdigest()

    def _compare(self, desk: Desktop) -> list[Box]:
        """Record the desktop's state and return the boxes that changed."""
        before, self._seen = self._seen, {}
        damage: list[Box | None] = []
        for window in desk.windows:
            self._note(window, window.x, window.y, self._box, before, damage)
        damage += [before[key].box for key in before.keys() - self._seen.keys()]
        damage += self._reordered(desk)
        damage += self._changed_extras(desk)
        return [box for box in damage if box is not None]

    def _note(
        self,
        widget: Widget,
        x: int,
        y: int,
        clip: Box,
        before: dict[int, _Seen],
        damage: list[Box | None],
    ) -> None:
        kind = type(widget)
        state = state_reader(kind)(widget)
        key = id(widget)
        box = (
            intersect(clip, (x, y, x + widget.width, y + widget.height)) if widget.visible else None
        )
        old = before.get(key)
        if old is None or old.state != state or old.kind is not kind:
            written = f"{kind.__name__}{state!r}".encode()
            damage += [box, old.box if old is not None else None]
            self._seen[key] = _Seen(kind, state, box, written)
        elif old.box != box:
            damage += [box, old.box]
            self._seen[key] = _Seen(kind, state, box, old.written)
        else:
            self._seen[key] = old
        if widget.children:
            left, top, right, bottom = widget.child_box()
            inner = (
                None if box is None else intersect(box, (x + left, y + top, x + right, y + bottom))
            ) or _NOWHERE
            origin = widget.child_origin()
            for child in widget.children:
                self._note(
                    child, x + origin[0] + child.x, y + origin[1] + child.y, inner, before, damage
                )

    def _reordered(self, desk: Desktop) -> list[Box | None]:
        """Return the boxes of windows whose z-order changed."""
        order = [id(window) for window in desk.windows]
        before, self._order = self._order, order
        kept = [key for key in before if key in order]
        now = [key for key in order if key in kept]
        return [self._seen[key].box for key, other in zip(now, kept, strict=True) if key != other]

    def _changed_extras(self, desk: Desktop) -> list[Box | None]:
        frames = [(m.x, m.y, m.x + m.width, m.y + m.height) for m in desk.menus]
        extras: tuple[Any, ...] = tuple((m.items, m.highlighted, m.x, m.y) for m in desk.menus)
        if self._shows_pointer:
            x, y = desk.pointer
            frames.append((x - 1, y - 1, x + _POINTER + 1, y + _POINTER + 1))
            extras += (desk.pointer,)
        if extras == self._extras:
            return []
        changed = [intersect(self._box, box) for box in {*self._frames} ^ {*frames}]
        if len(self._extras) == len(extras):  # same place, different items
            changed += [intersect(self._box, box) for box in frames]
        self._frames, self._extras = frames, extras
        return changed

    def _repaint(self, desk: Desktop, box: Box) -> None:
        painter = Painter(self.canvas, box, desk.theme)
        for window in desk.windows[_lowest_seen(desk, box) :]:
            _paint(window, painter, window.x, window.y)
        for menu in desk.menus:
            menu.paint(painter)
        if self._shows_pointer:
            painter.pointer(*desk.pointer, _POINTER)


_NOWHERE: Final[Box] = (0, 0, 0, 0)


def _lowest_seen(desk: Desktop, box: Box) -> int:
    """Return the index of the topmost window that covers the box; lower ones are hidden."""
    for index in range(len(desk.windows) - 1, 0, -1):
        window = desk.windows[index]
        if window.visible and box == intersect(
            box, (window.x, window.y, window.x + window.width, window.y + window.height)
        ):
            return index
    return 0


def _paint(widget: Widget, painter: Painter, x: int, y: int) -> None:
    left, top, right, bottom = painter.clip
    if (
        not widget.visible
        or x >= right
        or y >= bottom
        or x + widget.width <= left
        or y + widget.height <= top
    ):
        return
    shown = painter.inside((x, y, x + widget.width, y + widget.height))
    if shown is None:
        return
    widget.paint(shown, x, y)
    if not widget.children:
        return
    left, top, right, bottom = widget.child_box()
    inner = shown.inside((x + left, y + top, x + right, y + bottom))
    if inner is not None:
        origin = widget.child_origin()
        for child in widget.children:
            _paint(child, inner, x + origin[0] + child.x, y + origin[1] + child.y)


def _merge(boxes: list[Box]) -> list[Box]:
    """Merge boxes with neighbours if that adds little area."""
    kept: list[Box] = []
    for box in sorted(set(boxes)):
        joined, apart = box, list[Box]()
        for other in kept:
            both = _frame((other, joined))
            if _area(both) <= _FAR + max(_area(other), _area(joined)):
                joined = both
            else:
                apart.append(other)
        kept = [*apart, joined]
    return kept if len(kept) <= _MAX_BOXES else [_frame(kept)]


def _frame(boxes: Sequence[Box]) -> Box:
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])
