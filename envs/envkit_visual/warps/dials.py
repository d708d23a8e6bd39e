"""Worlds of a few dials, each to be set to an angle that only the picture shows."""

import functools
import random
from colorsys import hsv_to_rgb
from dataclasses import replace
from typing import ClassVar, TypeVar

from PIL import Image as PilImage
from PIL import ImageDraw

from envkit_visual.answers import whole_numbers
from envkit_visual.canvas import SIDE, Canvas, Color, Look, around
from envkit_visual.warps.art import LEGEND, art, colored, letters_at
from envkit_visual.world import Outcome, Record, Staged, plain


class DialState(Record):
    """What each dial is set to and should be, in degrees from 0 to 359."""

    settings: tuple[int, ...]
    targets: tuple[int, ...]
    tolerance: int


D = TypeVar("D", bound=DialState)


class Dials(Staged[D]):
    """Several dials: a single one could be found by turning it around in steps."""

    dials: ClassVar[tuple[str, ...]]
    """Names of the dials."""
    done: ClassVar[str]
    """Feedback on a turn."""
    part: ClassVar[str]
    """What each dial turns."""

    def drawn(self, rng: random.Random, tolerance: int) -> DialState:
        """Draw targets, and settings that are well off them."""
        targets = tuple(rng.randrange(360) for _ in self.dials)
        settings = tuple((target + rng.randint(40, 320)) % 360 for target in targets)
        return DialState(settings=settings, targets=targets, tolerance=tolerance)

    def ask(self, state: D) -> str:
        """Say how exact a setting must be."""
        return f"Each {self.part} may be off by {state.tolerance} degrees."

    def act(self, state: D, action: str) -> Outcome[D]:
        """Turn a dial."""
        name, _, rest = plain(action).partition(" ")
        turn = whole_numbers(rest, 1)
        settings = dict(zip(map(str.casefold, self.dials), state.settings, strict=True))
        if name not in settings or turn is None:
            named = f'one of {", ".join(self.dials)} and degrees, such as "{self.dials[0]} 40"'
            return Outcome(state=state, error=f"an action is {named}")
        settings[name] = (settings[name] + turn[0]) % 360
        return Outcome(state=replace(state, settings=tuple(settings.values())), text=self.done)

    def progress(self, state: D) -> float:
        """Return the part of the dials that are within the tolerance."""
        return 1 - len(self.plan(state)) / len(self.dials)

    def plan(self, state: D) -> list[str]:
        """Turn each dial that is off by as much as it is."""
        pairs = zip(self.dials, state.settings, state.targets, strict=True)
        turns = [(name, (target - setting + 180) % 360 - 180) for name, setting, target in pairs]
        return [f"{name} {turn}" for name, turn in turns if abs(turn) > state.tolerance]

    def choices(self, state: D) -> list[str]:
        """Return turns of each dial around the circle, in steps of twice the tolerance."""
        steps = range(2 * state.tolerance, 360, 2 * state.tolerance)
        return [f"{name} {turn}" for name in self.dials for turn in steps]


_WHEEL = (224, 148, 108)
"""Center and radius."""
_WEDGE = 5
"""Degrees of the wheel in one color."""


class Tint(Dials[DialState]):
    """Change the hue of patches until they match their targets.

    The wheel shows every hue by its degrees. Below it are four pairs of patches, A to D. The upper
    patch of a pair is the target and stays as it is. Move the lower patch along the wheel until it
    has the same hue, for all four pairs.

    An action is the letter of a pair and by how many degrees to move its lower patch clockwise
    along the wheel, such as "B 75"; a negative number moves it the other way.
    """

    dials = ("A", "B", "C", "D")
    done = "Changed."
    part = "hue"
    difficulty = ("tolerance in degrees", 24, 16, 10, 6)

    def create(self, rng: random.Random, size: int) -> DialState:
        """Draw the hues."""
        return self.drawn(rng, size)

    def draw(self, state: DialState, canvas: Canvas, look: Look) -> None:
        """Draw the wheel and the pairs, whose patches touch so that a match can be seen."""
        x, y, radius = _WHEEL
        canvas.paste(_wheel(canvas.pixels(2 * radius)), x - radius, y - radius)
        for turn in range(0, 360, 30):
            inner, outer, spot = (around((x, y), radius + by, turn) for by in (-6, 4, 20))
            canvas.path((inner, outer), color=look.ink, width=2)
            canvas.text(*spot, str(turn), color=look.ink, size=14)
        pairs = zip(self.dials, state.targets, state.settings, strict=True)
        canvas.text(12, 348, "target", color=look.ink, size=14, at="lm")
        canvas.text(12, 400, "yours", color=look.ink, size=14, at="lm")
        for index, (name, target, setting) in enumerate(pairs):
            left = 76 + 92 * index
            canvas.text(left + 40, 310, name, color=look.ink, size=18)
            canvas.box(left, 322, left + 80, 374, fill=_hue(target))
            canvas.box(left, 374, left + 80, 426, fill=_hue(setting))

    def tell(self, state: DialState) -> str:
        """List the hues."""
        pairs = zip(self.dials, state.targets, state.settings, strict=True)
        return "\n".join(f"{k}: target at {a} degrees, yours at {b} degrees" for k, a, b in pairs)


@functools.lru_cache(maxsize=8)
def _wheel(pixels: int) -> PilImage.Image:
    """Return a ring of all hues of this width and height, with nothing around it."""
    wheel = PilImage.new("RGBA", (pixels, pixels))
    pen = ImageDraw.Draw(wheel)
    for turn in range(0, 360, _WEDGE):
        start = turn - 90 - _WEDGE / 2
        pen.pieslice((0, 0, pixels - 1, pixels - 1), start, start + _WEDGE, _hue(turn))
    inner, outer = round(pixels * 0.225), round(pixels * 0.775)
    pen.ellipse((inner, inner, outer, outer), (0, 0, 0, 0))
    return wheel


def _hue(degrees: int) -> Color:
    red, green, blue = hsv_to_rgb(degrees / 360, 0.8, 0.92)
    return round(red * 255), round(green * 255), round(blue * 255)


_RADII = (76, 138, 200)
"""Outer edges of the rings, from the middle outwards."""
_STEP = 5
"""Degrees between the letters that tell the edges."""


class UnrotateState(DialState):
    """A picture whose rings are turned clockwise by their settings."""

    art: int


class Unrotate(Dials[UnrotateState]):
    """Turn the rings of a picture until they fit together.

    A picture was cut along three circles, and the parts were turned: the inner disc, the middle
    ring and the outer ring. What is outside the circles did not move. Turn the parts until the
    whole picture fits together.

    An action is the part (inner, middle or outer) and by how many degrees to turn it clockwise,
    such as "middle 75"; a negative number turns it the other way.
    """

    dials = ("inner", "middle", "outer")
    done = "Turned."
    part = "part"
    difficulty = ("tolerance in degrees", 12, 8, 5, 3)

    def create(self, rng: random.Random, size: int) -> UnrotateState:
        """Draw a picture and how far each part is turned."""
        drawn = self.drawn(rng, size)
        pairs = zip(drawn.settings, drawn.targets, strict=True)
        settings = tuple((setting - target) % 360 for setting, target in pairs)
        art = rng.randrange(2**31)
        return UnrotateState(settings=settings, targets=(0, 0, 0), tolerance=size, art=art)

    def draw(self, state: UnrotateState, canvas: Canvas, look: Look) -> None:
        """Draw the turned parts and the circles."""
        canvas.paste(colored(_turned(state, canvas.picture.width), look), 0, 0)
        for radius in _RADII:
            canvas.disc(SIDE / 2, SIDE / 2, radius, line=look.ink, width=1.5)

    def tell(self, state: UnrotateState) -> str:
        """Write the colors on both sides of each circle."""
        picture = _turned(state, SIDE)
        lines = [f"{LEGEND} Clockwise from the top, a letter every {_STEP} degrees:"]
        for name, radius in zip(self.dials, _RADII, strict=True):
            for side, at in (("inside", radius - 4), ("outside", radius + 4)):
                places = [around((0.5, 0.5), at / SIDE, turn) for turn in range(0, 360, _STEP)]
                seen = letters_at(picture, places)
                lines.append(f"just {side} the edge of the {name} part: {seen}")
        return "\n".join(lines)

    def goal(self, state: UnrotateState) -> UnrotateState:
        """Return the whole picture."""
        return replace(state, settings=state.targets)


def _turned(state: UnrotateState, pixels: int) -> PilImage.Image:
    """Return the picture with its parts turned, as color numbers."""
    whole = art(state.art, pixels)
    turned = whole.copy()
    middle = pixels // 2
    for radius, setting in reversed(tuple(zip(_RADII, state.settings, strict=True))):
        half = round(radius * pixels / SIDE)
        box = (middle - half, middle - half, middle + half, middle + half)
        turned.paste(whole.crop(box).rotate(-setting), box, _disc(2 * half))
    return turned


@functools.lru_cache(maxsize=16)
def _disc(pixels: int) -> PilImage.Image:
    mask = PilImage.new("1", (pixels, pixels))
    ImageDraw.Draw(mask).ellipse((0, 0, pixels - 1, pixels - 1), 1)
    return mask
