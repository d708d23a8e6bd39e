"""Compare text documents: docx by python-docx, odt by its XML.

How different two colours look is CIEDE2000 over CIELAB of the D65 white, from sRGB.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree

import docx
from docx.document import Document
from docx.enum.text import WD_ALIGN_PARAGRAPH, WD_TAB_ALIGNMENT
from docx.text.run import Run
from PIL import Image, ImageOps

from envkit_linux_desktop.osworld.evaluators import values
from envkit_linux_desktop.osworld.evaluators.values import Evaluator, File, Options

_ODF: Final = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_STYLE: Final = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_BACKGROUND: Final = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}background-color"
_WORD: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


def read_docx(file: File) -> Document:
    """Open a docx document.

    Raises:
        UnreadableError: It is not one.
    """
    values.open_zip(file).close()
    with values.reading(file):
        return docx.Document(io.BytesIO(file.data))


def paragraphs(file: File) -> list[str]:
    """Return the texts of a docx or odt document's paragraphs.

    Raises:
        UnreadableError: It is neither.
    """
    if file.ending == "docx":
        return [paragraph.text for paragraph in read_docx(file).paragraphs]
    if file.ending != "odt":
        raise values.UnreadableError(file, "only docx and odt documents are compared")
    root = _odt_part(file, "content.xml")
    return ["".join(_odt_texts(element)) for element in root.iter(f"{_ODF}p")]


def _odt_texts(paragraph: ElementTree.Element) -> Iterator[str]:
    """Yield the texts that stand in a paragraph or in a span of it, as OSWorld reads them."""
    yield paragraph.text or ""
    for child in paragraph:
        if child.tag == f"{_ODF}span":
            yield child.text or ""
            yield from (grandchild.tail or "" for grandchild in child)
        yield child.tail or ""


def _odt_part(file: File, name: str) -> ElementTree.Element:
    with values.open_zip(file) as archive, values.reading(file):
        return ElementTree.fromstring(archive.read(name))


@values.of_files
def compare_docx_files(result: File, expected: File, options: Options) -> float:
    """Compare the texts of two documents."""
    one, two = paragraphs(result), paragraphs(expected)
    if options.get("ignore_order"):
        one, two = sorted(one), sorted(two)
    if options.get("delete_empty_lines"):
        one, two = ([text for text in texts if text.strip()] for texts in (one, two))
    return _compare(one, two, options)


def _compare(one: list[str], two: list[str], options: Options) -> float:
    if options.get("ignore_case"):
        one, two = [text.lower() for text in one], [text.lower() for text in two]
    if options.get("content_only"):
        return values.similarity(_joined(one), _joined(two))
    if options.get("ignore_blanks", True):
        if options.get("fuzzy_match"):
            return values.similarity(_joined(one), _joined(two))
        return float(_joined(one) == _joined(two))
    if len(one) != len(two):
        return 0.0
    if not options.get("fuzzy_match"):
        return float(one == two)
    ratios = [values.similarity(left, right) for left, right in zip(one, two, strict=True)]
    return sum(ratios) / len(ratios) if ratios else 1.0


def _joined(texts: list[str]) -> str:
    return re.sub(r"\s+", " ", "\n".join(texts)).strip()


@values.of_files
def ignore_new_lines(result: File, expected: File, options: Options) -> float:
    """Compare two documents' paragraphs that are not empty."""
    one, two = ([text for text in paragraphs(file) if text] for file in (result, expected))
    kept = {"ignore_blanks": options.get("ignore_blanks", True)}
    return _compare(one, two, kept)


def _both(check: Callable[[Document, Document], bool], *, same_text: bool = False) -> Evaluator:
    """Return an evaluator that compares two docx documents."""

    def evaluate(result: File, expected: File, _: Options) -> float:
        if same_text and not compare_docx_files(result, expected, {}):
            return 0.0
        return float(check(read_docx(result), read_docx(expected)))

    return values.of_files(evaluate)


def _equal(read: Callable[[Document], object], *, same_text: bool = False) -> Evaluator:
    """Return an evaluator that checks that two docx documents read the same."""
    return _both(lambda one, two: read(one) == read(two), same_text=same_text)


def _alone(check: Callable[[Document, Mapping[str, Any]], bool]) -> Evaluator:
    """Return an evaluator that checks one docx document against the rule's fields."""
    return values.of_one_file(lambda file, rules: float(check(read_docx(file), rules)))


def _tables(document: Document) -> list[list[list[str]]]:
    return [
        [[cell.text.strip() for cell in row.cells] for row in table.rows]
        for table in document.tables
    ]


def _pixels(document: Document) -> list[bytes]:
    relations = [part for part in document.part.rels.values() if "image" in part.reltype]
    return [
        ImageOps.exif_transpose(Image.open(io.BytesIO(part.target_part.blob))).tobytes()
        for part in relations
        if not part.is_external
    ]


def _spacings(document: Document) -> list[object]:
    return [part.paragraph_format.line_spacing for part in document.paragraphs]


def _same_first_lines(one: Document, two: Document) -> bool:
    pairs = zip(one.paragraphs, two.paragraphs, strict=False)
    return all(left.text == right.text for left, right in pairs)


def _has_subscript(one: Document, two: Document) -> bool:
    return any(
        bool(a.font.subscript) and bool(b.font.subscript)
        for left, right in zip(one.paragraphs, two.paragraphs, strict=False)
        for a, b in zip(left.runs, right.runs, strict=False)
    )


def _last_is_struck(one: Document, _: Document) -> bool:
    runs = one.paragraphs[-1].runs if one.paragraphs else []
    return all(run.font.strike for run in runs)


def _italics_have_size_14(one: Document, _: Document) -> bool:
    runs = [run for paragraph in one.paragraphs for run in paragraph.runs if run.italic]
    return all(run.font.size is not None and run.font.size.pt == 14 for run in runs)


def _images_in_same_runs(one: Document, two: Document) -> bool:
    pairs = zip(one.paragraphs, two.paragraphs, strict=False)
    return all(
        ("graphicData" in a.element.xml) == ("graphicData" in b.element.xml)
        for left, right in pairs
        for a, b in zip(left.runs, right.runs, strict=False)
    )


def _lines(document: Document) -> set[str]:
    return {text for part in document.paragraphs if (text := part.text.strip())}


def colored_words(result: Any, expected: Any, options: Options) -> float:  # noqa: ANN401
    """Check that words in tables are red if they begin with a vowel, else blue."""
    if not compare_docx_files(result, expected, {}):
        return 0.0
    runs = [
        run
        for table in read_docx(result).tables
        for row in table.rows
        for cell in row.cells
        for paragraph in cell.paragraphs
        for run in paragraph.runs
        if run.text
    ]
    return float(all(_has_its_color(run, options.get("threshold", 3.5)) for run in runs))


def _has_its_color(run: Run, threshold: float) -> bool:
    color = run.font.color.rgb
    wanted = (255, 0, 0) if run.text[0].lower() in "aeiou" else (0, 0, 255)
    return color is not None and difference(color, wanted) <= threshold


def highlight_removed(result: Any, expected: Any, _: Options) -> float:  # noqa: ANN401
    """Check that an odt document has its text and no yellow background under a span."""
    if not compare_docx_files(result, expected, {}):
        return 0.0
    root = _odt_part(result, "content.xml")
    yellow = {
        style.get(f"{_STYLE}name")
        for style in root.iter(f"{_STYLE}style")
        if any(part.get(_BACKGROUND) == "#ffff00" for part in style)
    }
    used = {span.get(f"{_ODF}style-name") for span in root.iter(f"{_ODF}span")}
    return float(not yellow & used)


@values.of_files
def compare_references(result: File, expected: File, options: Options) -> float:
    """Return how similar the entries after the heading `References` are, above a base."""
    heading = options.get("reference_indicator", "References")
    own, gold = ([part.text for part in read_docx(file).paragraphs] for file in (result, expected))
    if heading not in own or heading not in gold:
        return float(heading not in own and heading not in gold)
    one, two = (
        [text for text in texts[texts.index(heading) + 1 :] if text.strip()]
        for texts in (own, gold)
    )
    if not one or len(one) != len(two):
        return 0.0
    ratios = [values.similarity(left, right) for left, right in zip(one, two, strict=True)]
    return values.above_base(sum(ratios) / len(ratios), options.get("reference_base_result", 0.5))


def _font_names(document: Document, rules: Mapping[str, Any]) -> bool:
    wanted = rules["font_name"]
    return all(run.font.name == wanted for part in document.paragraphs for run in part.runs)


def _page_breaks(document: Document, rules: Mapping[str, Any]) -> bool:
    breaks = [
        element
        for element in document.element.body.iter(f"{_WORD}br")
        if element.get(f"{_WORD}type") == "page"
    ]
    return len(breaks) == rules.get("page_break_count", len(breaks)) and bool(breaks)


def _first_is_centred(document: Document, _: Mapping[str, Any]) -> bool:
    first = document.paragraphs[0] if document.paragraphs else None
    return first is not None and bool(first.paragraph_format.alignment == WD_ALIGN_PARAGRAPH.CENTER)


def _numbers_in_footers(document: Document, _: Mapping[str, Any]) -> bool:
    texts = [
        section.footer.paragraphs[0].text if section.footer.paragraphs else ""
        for section in document.sections
    ]
    return all(any(character.isdigit() for character in text) for text in texts)


@values.of_files
def check_tabstops(result: File, expected: File, options: Options) -> float:
    """Compare where paragraphs are split by tab stops."""
    own, gold = read_docx(result), read_docx(expected)
    one, two = ([part for part in book.paragraphs if part.text.strip()] for book in (own, gold))
    if not one or len(one) != len(two):
        return 0.0
    number, index = options.get("word_number_split_by_tabstop"), options.get("index", 0)
    if number is not None and not all(_words(part.text, index) == number for part in one):
        return 0.0
    section = gold.sections[0]
    width = (section.page_width or 0) - (section.left_margin or 0) - (section.right_margin or 0)
    distance = 0.0
    for left, right in zip(one, two, strict=True):
        stops, wanted = _stops(left), _stops(right)
        if [stop[0] for stop in stops] != [stop[0] for stop in wanted]:
            return 0.0
        distance += sum(abs(a[1] - b[1]) for a, b in zip(stops, wanted, strict=True)) / width
    return max(0.0, 1 - distance / len(one))


def _words(text: str, index: int) -> int:
    parts = text.split("\t")
    return len(parts[index].split()) if index < len(parts) else 0


def _stops(paragraph: Any) -> list[tuple[Any, int]]:  # noqa: ANN401  # python-docx's paragraph
    return [
        (stop.alignment, int(stop.position))
        for stop in paragraph.paragraph_format.tab_stops
        if stop.alignment != WD_TAB_ALIGNMENT.CLEAR
        and not (stop.alignment == WD_TAB_ALIGNMENT.LEFT and stop.position == 0)
    ]


def unique_records(result: Any, expected: Any, _: Options) -> float:  # noqa: ANN401
    """Check that duplicate records, by their second field of four, were removed."""
    if not (isinstance(result, File) and isinstance(expected, list)):
        return 0.0
    own, gold, first = (
        [text.strip() for text in paragraphs(file) if text.strip()]
        for file in (result, *expected[:2])
    )
    keys, wanted = _keys(own), _keys(gold)
    unique = len(keys) == len(set(keys)) and set(keys) == set(wanted)
    return float(unique and len(own) == len(gold) and set(own) <= set(first))


def _keys(lines: list[str]) -> list[str]:
    parts = [line.split(",") for line in lines]
    return [fields[1].strip() for fields in parts if len(fields) == 4]


compare_docx_tables = _equal(_tables)
compare_docx_images = _equal(_pixels)
compare_line_spacing = _equal(_spacings, same_text=True)
compare_init_lines = _both(_same_first_lines)
compare_subscript_contains = _both(_has_subscript)
strike_through_last_paragraph = _both(_last_is_struck, same_text=True)
italic_font_size_14 = _both(_italics_have_size_14, same_text=True)
compare_contains_image = _both(_images_in_same_runs)
compare_docx_lines = _equal(_lines)
compare_font_names = _alone(_font_names)
contains_page_break = _alone(_page_breaks)
is_first_line_centered = _alone(_first_is_centred)
has_page_numbers_in_footers = _alone(_numbers_in_footers)


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
