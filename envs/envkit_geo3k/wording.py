"""Words of an answer that name a quantity and carry no value.

They are a closed list. Any other word makes the answer unreadable, so "twice x is 12" or "the
answer is not 12" never counts as 12.
"""

import re
from typing import Final

_PROSE: Final = frozenset(
    """
    the a an of to and for in on at by its this that it we our I must would should therefore thus
    so hence then finally now answer answers ans final correct result solution value values required
    desired total exact numerical numeric problem question
    length lengths width height depth distance measure measurement size area perimeter circumference
    volume surface radius diameter apothem side sides base bases hypotenuse leg legs altitude median
    midsegment slope angle angles arc chord sector segment line ray ratio scale factor probability
    percentage sum number coordinate coordinates point midpoint center centre vertex centroid
    incenter orthocenter circumcenter triangle triangles rectangle square circle rhombus
    parallelogram trapezoid trapezium kite quadrilateral polygon pentagon hexagon octagon figure
    shape region shaded grid diagonal diagonals bisector interior exterior central inscribed
    intercepted missing unknown given similar minor major tangent secant sine cosine regular right
    isosceles equilateral between speed time cost sin cos tan
    """.split()  # noqa: SIM905  # a hundred quoted words cannot be read
)
_COMMANDS: Final = frozenset(
    """
    angle measuredangle triangle overline bar widehat hat overarc overparen overgroup wideparen arc
    overrightarrow overleftrightarrow overset vec stackrel frown smallfrown odot parallelogram
    square therefore Rightarrow implies frac sin cos tan
    theta alpha beta gamma delta phi psi omega ell Delta
    """.split()  # noqa: SIM905  # a hundred quoted words cannot be read
)
_NOT_POINTS: Final = frozenset(("NOT", "NEVER", "FALSE", "WRONG", "EITHER", "IF", "MAYBE"))
_MAX_POINTS: Final = 6
_TOKEN: Final = re.compile(
    r"(\\[A-Za-z]+|[A-Za-z\u0370-\u03ff]+)'*(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9\\ ]{1,16}\}))?"
    r"|\|\s?[A-Z]{2}\s?\||[{}(),:/\s]+|([0-9]{1,2})(?![0-9.])"
)
_OTHER_QUANTITY: Final = re.compile(r"[Ss]quare\s+of|[yz]\s*,\s*[xy]")
"""Texts that look like a name but mean something else: the square of x; (y, x)."""


def is_name(text: str) -> bool:
    """Return whether the text names a quantity: x, AB, m angle ABC, the length of AB."""
    position = 0
    after_angle = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return False
        word, digits = match.groups()
        if digits and not after_angle:  # angle 1 is a name, "x 2" is a product
            return False
        if word and not _is_name_word(word):
            return False
        after_angle = word in ("\\angle", "\\measuredangle", "angle", "Angle") or (
            after_angle and not word and not digits
        )
        position = match.end()
    return bool(text) and _OTHER_QUANTITY.search(text) is None


def _is_name_word(word: str) -> bool:
    if word[0] == "\\":
        return word[1:] in _COMMANDS
    if len(word) == 1 or word.lower() in _PROSE:
        return True
    points = word[1:] if word[0] == "m" else word
    return points.isupper() and len(points) <= _MAX_POINTS and points not in _NOT_POINTS
