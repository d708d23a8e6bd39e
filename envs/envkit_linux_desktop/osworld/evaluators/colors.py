"""How different two colours look: CIEDE2000 over CIELAB of the D65 white, from sRGB."""

import math
from collections.abc import Sequence
from typing import Final

_XYZ: Final = (
    (0.412453, 0.357580, 0.180423),
    (0.212671, 0.715160, 0.072169),
    (0.019334, 0.119193, 0.950227),
)
_WHITE: Final = (0.95047, 1.0, 1.08883)
_BEND: Final = 25.0**7


def difference(one: Sequence[int], two: Sequence[int]) -> float:
    """Return the CIEDE2000 difference of two colours given as red, green and blue, 0 to 255."""
    (l1, a1, b1), (l2, a2, b2) = _lab(one), _lab(two)
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * _saturation(mean)
    chroma1, chroma2 = math.hypot(a1 * stretch, b1), math.hypot(a2 * stretch, b2)
    hue1, hue2 = (_hue(b1, a1 * stretch), _hue(b2, a2 * stretch))
    turn, hue = _between(hue1, hue2, is_grey=chroma1 * chroma2 == 0)
    lightness, chroma = (l1 + l2) / 2, (chroma1 + chroma2) / 2
    away = (lightness - 50) ** 2
    by_lightness = (l2 - l1) / (1 + 0.015 * away / math.sqrt(20 + away))
    by_chroma = (chroma2 - chroma1) / (1 + 0.045 * chroma)
    by_hue = 2 * math.sqrt(chroma1 * chroma2) * math.sin(turn / 2)
    by_hue /= 1 + 0.015 * chroma * _weight(hue)
    rotation = 60 * math.exp(-(((math.degrees(hue) - 275) / 25) ** 2))
    mixed = -2 * _saturation(chroma) * math.sin(math.radians(rotation))
    return math.sqrt(by_lightness**2 + by_chroma**2 + by_hue**2 + mixed * by_chroma * by_hue)


def _lab(color: Sequence[int]) -> tuple[float, float, float]:
    linear = [_linear(part / 255) for part in color]
    x, y, z = (
        _root(sum(a * b for a, b in zip(row, linear, strict=True)) / white)
        for row, white in zip(_XYZ, _WHITE, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _linear(part: float) -> float:
    return ((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92


def _root(value: float) -> float:
    return value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116


def _saturation(chroma: float) -> float:
    return math.sqrt(chroma**7 / (chroma**7 + _BEND))


def _hue(b: float, a: float) -> float:
    return math.atan2(b, a) % math.tau


def _between(one: float, two: float, *, is_grey: bool) -> tuple[float, float]:
    """Return the turn from one hue to the other, and the hue in the middle."""
    if is_grey:
        return 0.0, one + two
    turn, middle = two - one, (one + two) / 2
    if abs(turn) > math.pi:
        turn += math.tau if turn < 0 else -math.tau
        middle += math.pi if one + two < math.tau else -math.pi
    return turn, middle


def _weight(hue: float) -> float:
    return (
        1
        - 0.17 * math.cos(hue - math.radians(30))
        + 0.24 * math.cos(2 * hue)
        + 0.32 * math.cos(3 * hue + math.radians(6))
        - 0.20 * math.cos(4 * hue - math.radians(63))
    )
