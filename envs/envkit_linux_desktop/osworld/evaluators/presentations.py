"""Compare presentations and check properties of them, read by python-pptx.

`compare_pptx_files` gives what OSWorld's function of this name gives, with its options and with
its rules for single tasks. That function raises where a slide's background has a theme's colour,
a shape has no place, or a note no text; here the colour, place or text is missing instead.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final
from xml.etree import ElementTree

from envkit_linux_desktop.osworld.evaluators import values

DRAWING: Final = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_FREEFORM: Final = 5
PICTURE: Final = 13
_TABLE: Final = 19
_SOLID: Final = 1
_NO_FILL: Final = 5
_LEFT: Final = 1
_SIDES: Final = ("left", "top", "width", "height")
_TOLERANCE: Final = 0.005
_LOW: Final = 3_600_000
_RIGHT: Final = 4_320_000
_HIGH: Final = 1_980_000
_FIXED_TITLE: Final = "Product Comparison"
_FIXED_HINT: Final = "Elaborate on what you want to discuss."
_Bullet = tuple[str, str, str]


def read_pptx(file: values.File) -> Any:  # noqa: ANN401  # python-pptx's presentation
    """Open a pptx presentation.

    Raises:
        UnreadableError: It is not one.
    """
    from pptx import Presentation

    values.open_zip(file).close()
    with values.reading(file):
        return Presentation(io.BytesIO(file.data))


def fill_color(fill: Any) -> Any:  # noqa: ANN401  # python-pptx's fill and colour
    """Return the colour of a solid fill; None if it is a theme's, or no solid one."""
    return getattr(fill.fore_color, "rgb", None) if fill.type == _SOLID else None


def background_color(slide: Any) -> Any:  # noqa: ANN401  # python-pptx's slide and colour
    """Return a slide's background colour, or that of its master if the slide has none."""
    fill = slide.background.fill
    if fill.type == _NO_FILL:
        fill = slide.slide_layout.slide_master.background.fill
    return fill_color(fill)


@values.of_files
def compare_pptx_files(
    result: values.File, expected: values.File, options: values.Options
) -> float:
    """Compare the slides of two presentations."""
    own, gold = list(read_pptx(result).slides), list(read_pptx(expected).slides)
    if len(own) != len(gold) and options.get("examine_number_of_slides", True):
        return 0.0
    pairs = enumerate(zip(own, gold, strict=False), start=1)
    return float(all(_same_slides(one, two, number, options) for number, (one, two) in pairs))


def _same_slides(one: Any, two: Any, number: int, options: values.Options) -> bool:  # noqa: ANN401
    if options.get("examine_background_color", True) and (
        background_color(one) != background_color(two)
    ):
        return False
    if options.get("examine_note", True) and _note(one) != _note(two):
        return False
    if len(one.shapes) != len(two.shapes):
        return False
    pairs = list(zip(one.shapes, two.shapes, strict=True))
    for a, b in pairs:
        pair = _Pair(one=a, two=b, slide=number, options=options)
        if not (_same_places(pair) and _same_tables(a, b, options)):
            return False
    texts = [(a, b) for a, b in pairs if _text(a) is not None and _text(b) is not None]
    if options.get("examine_bullets", True) and not _same_bullets(one, two, texts):
        return False
    if not all(_same_texts(a, b, options) for a, b in texts):
        return False
    return _same_alignments(list(_text_shapes(one)), list(_text_shapes(two)), options)


def _note(slide: Any) -> str:  # noqa: ANN401
    frame = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    return "" if frame is None else frame.text.strip()


def _kind(shape: Any) -> int | None:  # noqa: ANN401
    try:
        return shape.shape_type
    except NotImplementedError:  # a shape that python-pptx does not know
        return None


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two shapes whose places are compared."""

    one: Any
    two: Any
    slide: int
    """Counts from 1."""
    options: values.Options

    def is_near(self, *sides: str) -> bool:
        """Return whether the shapes' sides are about equal."""
        tolerance = self.options.get("approximately_tolerance", _TOLERANCE)
        for side in sides or _SIDES:
            left, right = getattr(self.one, side), getattr(self.two, side)
            if left == right:
                continue
            # A placeholder may have no place of its own; only zero is near zero.
            if not left or not right:
                return False
            if abs(left - right) / max(abs(left), abs(right)) > tolerance:
                return False
        return True

    def are(self, kind: int) -> bool:
        """Return whether both shapes are of a kind."""
        return _kind(self.one) == _kind(self.two) == kind

    @property
    def texts(self) -> tuple[str | None, str | None]:
        """The shapes' texts; None for a shape that has none."""
        return _text(self.one), _text(self.two)


def _same_places(pair: _Pair) -> bool:
    """Check the places and sizes of two shapes by the options that ask for it."""
    if pair.options.get("examine_shape", True) and not pair.is_near():
        return False
    return all(check(pair) for name, check in _PLACES.items() if pair.options.get(name, False))


def _title_moved(pair: _Pair) -> bool:
    text, other = pair.texts
    if text is None or text != other:
        return pair.is_near()
    return text != _FIXED_TITLE or _is_lower(pair)


def _table_moved(pair: _Pair) -> bool:
    return _is_lower(pair) if pair.slide == 3 and pair.are(_TABLE) else pair.is_near()


def _is_lower(pair: _Pair) -> bool:
    return bool(pair.one.top > pair.two.top and pair.one.top >= _LOW)


def _right_moved(pair: _Pair) -> bool:
    if pair.slide != 2 or pair.texts != (None, None):
        return True
    return bool(pair.one.left > pair.two.left and pair.one.left >= _RIGHT)


def _top_moved(pair: _Pair) -> bool:
    if pair.slide != 2 or not pair.are(PICTURE):
        return True
    return bool(pair.one.top < pair.two.top and pair.one.top <= _HIGH)


def _heightened(pair: _Pair) -> bool:
    has_no_text = pair.texts == (None, None)
    return pair.is_near("height") if has_no_text or pair.are(_FREEFORM) else pair.is_near()


_PLACES: Final[dict[str, Callable[[_Pair], bool]]] = {
    "examine_title_bottom_position": _title_moved,
    "examine_table_bottom_position": _table_moved,
    "examine_right_position": _right_moved,
    "examine_top_position": _top_moved,
    "examine_shape_for_shift_size": lambda pair: (
        pair.is_near() or pair.texts == (_FIXED_HINT, _FIXED_HINT)
    ),
    "examine_image_size": lambda pair: pair.is_near(
        *(("width", "height") if pair.are(PICTURE) else ())
    ),
    "examine_modify_height": _heightened,
}


def _text(shape: Any) -> str | None:  # noqa: ANN401
    return getattr(shape, "text", None)


def _same_tables(one: Any, two: Any, options: values.Options) -> bool:  # noqa: ANN401
    """Compare the looks of two tables' cells; their texts are compared with the bullets."""
    if _kind(one) != _TABLE:
        return True
    if _kind(two) != _TABLE:
        return False
    rows, other_rows = list(one.table.rows), list(two.table.rows)
    if len(rows) != len(other_rows) or len(one.table.columns) != len(two.table.columns):
        return False
    pairs = [
        (a, b)
        for row, other in zip(rows, other_rows, strict=True)
        for cell, twin in zip_longest(row.cells, other.cells)
        for a, b in zip_longest(_paragraphs(cell), _paragraphs(twin))
    ]
    if any(a is None or b is None or len(a.runs) != len(b.runs) for a, b in pairs):
        return False
    return all(
        _same_color(left.font, right.font, options) and _same_emphasis(left.font, right.font, {})
        for a, b in pairs
        for left, right in zip(a.runs, b.runs, strict=True)
    )


def _paragraphs(shape: Any) -> list[Any]:  # noqa: ANN401
    return [] if shape is None else list(shape.text_frame.paragraphs)


def _same_texts(one: Any, two: Any, options: values.Options) -> bool:  # noqa: ANN401
    if options.get("examine_text", True) and one.text.strip() != two.text.strip():
        return False
    own, gold = _paragraphs(one), _paragraphs(two)
    return len(own) == len(gold) and all(
        _same_paragraphs(a, b, options) for a, b in zip(own, gold, strict=True)
    )


def _same_paragraphs(one: Any, two: Any, options: values.Options) -> bool:  # noqa: ANN401
    return (
        not (options.get("examine_alignment", True) and _alignment(one) != _alignment(two))
        and not (options.get("examine_text", True) and one.text != two.text)
        and not (options.get("examine_indent", True) and one.level != two.level)
        and len(one.runs) == len(two.runs)
        and all(_same_runs(a, b, options) for a, b in zip(one.runs, two.runs, strict=True))
    )


def _alignment(paragraph: Any) -> int:  # noqa: ANN401
    return _LEFT if paragraph.alignment is None else paragraph.alignment


def _same_runs(one: Any, two: Any, options: values.Options) -> bool:  # noqa: ANN401
    left, right = one.font, two.font
    return (
        not (options.get("examine_font_name", True) and left.name != right.name)
        and not (options.get("examine_font_size", True) and left.size != right.size)
        and not (options.get("examine_strike_through", True) and _strike(one) != _strike(two))
        and _same_color(left, right, options)
        and _same_emphasis(left, right, options)
    )


def _strike(run: Any) -> str:  # noqa: ANN401
    properties = run._r.rPr
    return "noStrike" if properties is None else properties.get("strike", "noStrike")


def _same_color(one: Any, two: Any, options: values.Options) -> bool:  # noqa: ANN401
    """Compare the colours of two fonts; a theme's colour equals every other."""
    if not options.get("examine_color_rgb", True):
        return True
    colors = [font.color for font in (one, two)]
    if not all(hasattr(color, "rgb") for color in colors):
        return True
    return colors[0].rgb == colors[1].rgb


def _same_emphasis(one: Any, two: Any, options: values.Options) -> bool:  # noqa: ANN401
    """Compare bold, italic and underline; what is not set is off."""
    if options.get("examine_font_bold", True) and bool(one.bold) != bool(two.bold):
        return False
    if options.get("examine_font_italic", True) and bool(one.italic) != bool(two.italic):
        return False
    if not options.get("examine_font_underline", True) or one.underline == two.underline:
        return True
    # Not set differs from a plain underline only, not from the other kinds.
    kinds = (one.underline, two.underline)
    return None in kinds and not any(kind is True for kind in kinds)


def _same_bullets(one: Any, two: Any, texts: list[tuple[Any, Any]]) -> bool:  # noqa: ANN401
    """Compare the bullets of two slides, if any of their text shapes has a run."""
    before: set[Any] = set()
    pairs = [pair for a, b in texts for pair in zip(_paragraphs(a), _paragraphs(b), strict=False)]
    for left, right in pairs:
        before |= {left._p, right._p}
        if left.runs:
            own, gold = _bullets(one, before), _bullets(two, before)
            return own is None or gold is None or own == gold
    return True


def _bullets(slide: Any, before: set[Any]) -> list[_Bullet] | None:  # noqa: ANN401
    """Return level, bullet and text of each paragraph; None if a text in one is empty.

    OSWorld's function fails on an empty text and then skips this comparison. Up to the first run
    it has read the level of each paragraph, which gives one to those without.

    Args:
        slide: The slide.
        before: The paragraphs up to the first run.
    """
    found: list[_Bullet] = []
    for paragraph in slide.element.iter(f"{DRAWING}p"):
        texts = [part.text for part in paragraph.iter(f"{DRAWING}t")]
        if None in texts:
            return None
        looks = paragraph.find(f"{DRAWING}pPr")
        level, character = "0" if paragraph in before else "No Level", "No Bullet"
        if looks is not None:
            level = looks.get("lvl", "0")
            mark = looks.find(f"{DRAWING}buChar")
            character = character if mark is None else mark.get("char")
        if (text := "".join(texts)).strip():
            found.append((level, character, text))
    return found


def _text_shapes(parent: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the shapes with text, also those in groups."""
    for shape in parent.shapes:
        if hasattr(shape, "text") and hasattr(shape, "text_frame"):
            yield shape
        if hasattr(shape, "shapes"):
            yield from _text_shapes(shape)


def _same_alignments(own: list[Any], gold: list[Any], options: values.Options) -> bool:
    if len(own) != len(gold):
        return False
    if not options.get("examine_alignment", True):
        return True
    for one, two in zip(own, gold, strict=True):
        if options.get("examine_text", True) and one.text.strip() != two.text.strip():
            return False
        left, right = _paragraphs(one), _paragraphs(two)
        if [_alignment(part) for part in left] != [_alignment(part) for part in right]:
            return False
    return True


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


def _is_portrait(file: values.File, _: Mapping[str, Any]) -> float:
    deck = read_pptx(file)
    return float(deck.slide_width < deck.slide_height)


def _has_transition(file: values.File, rules: Mapping[str, Any]) -> float:
    root = _part(file, f"ppt/slides/slide{rules['slide_idx'] + 1}.xml")
    if root is None:
        return 0.0
    found = root.find(f".//{_PRESENTATION}transition")
    kind = f".//{_PRESENTATION}{rules['transition_type']}"
    return float(found is not None and found.find(kind) is not None)


def _page_number_has_color(file: values.File, rules: Mapping[str, Any]) -> float:
    root = _part(file, _MASTER)
    colors = [] if root is None else root.findall(f".//{DRAWING}solidFill//{DRAWING}srgbClr")
    digits = colors[-2].get("val", "") if len(colors) > 1 else ""
    # OSWorld reads the digits as if a # came first: FF0000 is F0, 00, 0.
    parts = [digits[at : at + 2] for at in (1, 3, 5)]
    if not all(re.fullmatch("[0-9a-fA-F]{1,2}", part) for part in parts):
        return 0.0
    red, green, blue = (int(part, 16) for part in parts)
    return float(_COLORS[rules["color"]](red, green, blue))


def _fill_is_near(file: values.File, rules: Mapping[str, Any]) -> float:
    """Return how near the slides' backgrounds are to a colour, on average."""
    slides = list(read_pptx(file).slides)
    wanted, original = rules["rgb"], rules.get("original_rgb")

    def distance(slide: Any) -> float:  # noqa: ANN401
        color = background_color(slide)
        if color is None or list(color) == original:
            return 1.0
        return math.dist(color, wanted) / math.dist((0, 0, 0), (255, 255, 255))

    return 1 - sum(map(distance, slides)) / len(slides) if slides else 0.0


@values.of_files
def image_stretched(result: values.File, expected: values.File, _: values.Options) -> float:
    """Check that the first image of the original's first slide now fills the slide."""
    deck, original = read_pptx(result), read_pptx(expected)
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


def _part(file: values.File, name: str) -> ElementTree.Element | None:
    with values.open_zip(file) as archive:
        if name not in archive.namelist():
            return None
        return ElementTree.fromstring(archive.read(name))


is_portrait = values.of_one_file(_is_portrait)
has_transition = values.of_one_file(_has_transition)
page_number_has_color = values.of_one_file(_page_number_has_color)
fill_is_near = values.of_one_file(_fill_is_near)
