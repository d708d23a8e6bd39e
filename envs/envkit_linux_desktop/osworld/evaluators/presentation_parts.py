"""Check single properties of presentations."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from xml.etree import ElementTree

from envkit_linux_desktop.osworld.evaluators import presentations
from envkit_linux_desktop.osworld.evaluators.presentations import DRAWING, PICTURE
from envkit_linux_desktop.osworld.evaluators.values import (
    File,
    Options,
    of_files,
    of_one_file,
    open_zip,
)

_PRESENTATION: Final = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_MASTER: Final = "ppt/slideMasters/slideMaster1.xml"
_HALF_INCH: Final = 457_200
_MARGIN: Final = 50
_COLORS: Final[dict[str, Callable[[int, int, int], bool]]] = {
    "red": lambda r, g, b: r > max(g, b) + _MARGIN,
    "green": lambda r, g, b: g > max(r, b) + _MARGIN,
    "blue": lambda r, g, b: b > max(r, g) + _MARGIN,
    "black": lambda r, g, b: max(r, g, b) < _MARGIN,
}


def color_problem(rules: Mapping[str, Any]) -> str | None:
    """Return why the rules of `check_page_number_colors` are not valid, or None."""
    return None if rules["color"] in _COLORS else f"color={rules['color']!r:.40}"


def transition_problem(rules: Mapping[str, Any]) -> str | None:
    """Return why the rules of `check_transition` are not valid, or None."""
    if rules["slide_idx"] >= 0 and rules["transition_type"].isalnum():
        return None
    return "another slide_idx or transition_type"


def fill_problem(rules: Mapping[str, Any]) -> str | None:
    """Return why the rules of `evaluate_presentation_fill_to_rgb_distance` fail, or None."""
    for color in (rules["rgb"], rules.get("original_rgb") or [0, 0, 0]):
        if not isinstance(color, list) or [type(part) for part in color] != [int] * 3:
            return f"the colour {color!r:.40}"
    return None


def _is_portrait(file: File, _: Mapping[str, Any]) -> float:
    deck = presentations.read_pptx(file)
    return float(deck.slide_width < deck.slide_height)


def _has_transition(file: File, rules: Mapping[str, Any]) -> float:
    root = _part(file, f"ppt/slides/slide{rules['slide_idx'] + 1}.xml")
    if root is None:
        return 0.0
    found = root.find(f".//{_PRESENTATION}transition")
    kind = f".//{_PRESENTATION}{rules['transition_type']}"
    return float(found is not None and found.find(kind) is not None)


def _page_number_has_color(file: File, rules: Mapping[str, Any]) -> float:
    root = _part(file, _MASTER)
    colors = [] if root is None else root.findall(f".//{DRAWING}solidFill//{DRAWING}srgbClr")
    digits = colors[-2].get("val", "") if len(colors) > 1 else ""
    # OSWorld reads the digits as if a # came first: FF0000 is F0, 00, 0.
    parts = [digits[at : at + 2] for at in (1, 3, 5)]
    if not all(re.fullmatch("[0-9a-fA-F]{1,2}", part) for part in parts):
        return 0.0
    red, green, blue = (int(part, 16) for part in parts)
    return float(_COLORS[rules["color"]](red, green, blue))


def _fill_is_near(file: File, rules: Mapping[str, Any]) -> float:
    """Return how near the slides' backgrounds are to a colour, on average."""
    slides = list(presentations.read_pptx(file).slides)
    wanted, original = rules["rgb"], rules.get("original_rgb")

    def distance(slide: Any) -> float:  # noqa: ANN401
        color = presentations.background_color(slide)
        if color is None or list(color) == original:
            return 1.0
        return math.dist(color, wanted) / math.dist((0, 0, 0), (255, 255, 255))

    return 1 - sum(map(distance, slides)) / len(slides) if slides else 0.0


@of_files
def image_stretched(result: File, expected: File, _: Options) -> float:
    """Check that the first image of the original's first slide now fills the slide."""
    deck, original = presentations.read_pptx(result), presentations.read_pptx(expected)
    first = next(iter(_images(original)), None)
    same = [one for one in _images(deck) if first and one.image.blob == first.image.blob]
    if not same:
        return 0.0
    shown, width, height = same[-1], original.slide_width, original.slide_height
    distances = (
        shown.width - width,
        shown.height - height,
        shown.left - (width - shown.width) / 2,
        shown.top - (height - shown.height) / 2,
    )
    return float(all(abs(distance) <= _HALF_INCH for distance in distances))


def _images(deck: Any) -> list[Any]:  # noqa: ANN401  # python-pptx's presentation and pictures
    return [shape for shape in deck.slides[0].shapes if shape.shape_type == PICTURE]


def _part(file: File, name: str) -> ElementTree.Element | None:
    with open_zip(file) as archive:
        if name not in archive.namelist():
            return None
        return ElementTree.fromstring(archive.read(name))


is_portrait = of_one_file(_is_portrait)
has_transition = of_one_file(_has_transition)
page_number_has_color = of_one_file(_page_number_has_color)
fill_is_near = of_one_file(_fill_is_near)
