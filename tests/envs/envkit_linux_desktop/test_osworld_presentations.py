"""OSWorld evaluators of presentations, on decks made by python-pptx."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from fakes.matrix import share
from fakes.osworld import saved
from PIL import Image
from pptx import Presentation
from pptx.dml.color import RGBColor
from pptx.enum.dml import MSO_THEME_COLOR
from pptx.enum.text import MSO_UNDERLINE, PP_ALIGN
from pptx.oxml.ns import qn
from pptx.util import Emu, Pt

from envkit_linux_desktop.osworld.evaluators import File, UnreadableError
from envkit_linux_desktop.osworld.grading import Comparison, evaluate

Edit = Callable[[Any], None]


def unchanged(_: Any) -> None:
    """Leave a deck as it is."""


def deck(edit: Edit = unchanged) -> bytes:
    """Return a deck: slide 1 has a title and a hint, slide 2 a picture, slide 3 a table."""
    made = Presentation()
    for number in range(3):
        slide = made.slides.add_slide(made.slide_layouts[5])
        title: Any = slide.shapes.title
        title.text = "Product Comparison" if number == 0 else f"Part {number}"
        box = slide.shapes.add_textbox(Emu(900_000), Emu(1_500_000), Emu(3_000_000), Emu(500_000))
        box.text_frame.text = "Elaborate on what you want to discuss." if number == 0 else "alpha"
        if number:
            box.text_frame.add_paragraph().add_run().text = "beta"
    image = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(image, "png")
    place = Emu(4_000_000), Emu(2_000_000), Emu(800_000), Emu(600_000)
    made.slides[1].shapes.add_picture(image, *place)
    frame = made.slides[2].shapes.add_table(2, 2, *(Emu(n) for n in (9, 3_000_000, 900, 90_000)))
    frame.table.cell(0, 0).text = "cell"
    group = made.slides[2].shapes.add_group_shape()
    group.shapes.add_textbox(*(Emu(9),) * 4).text_frame.text = "grouped"
    edit(made)
    return saved(made)


def file(data: bytes, *, own: bool = True) -> File:
    return File(name="talk.pptx", data=data, is_result=own)


def compare(result: bytes, expected: bytes, **options: Any) -> float:
    values = {"result": file(result), "expected": file(expected, own=False)}
    return evaluate(Comparison(function="compare_pptx_files", options=options, **values))


def check(function: str, result: bytes, rules: Any = None) -> float:
    expected = file(rules, own=False) if isinstance(rules, bytes) else rules
    values = {"result": file(result), "expected": expected}
    return evaluate(Comparison(function=function, options={}, **values))


def text(made: Any, slide: int = 1) -> Any:
    return made.slides[slide].shapes[1].text_frame


def run(made: Any) -> Any:
    return text(made).paragraphs[0].runs[0]


def cell_run(made: Any) -> Any:
    return made.slides[2].shapes[2].table.cell(0, 0).text_frame.paragraphs[0].runs[0]


def place(slide: int, shape: int, **sides: int) -> Edit:
    def edit(made: Any) -> None:
        for side, value in sides.items():
            setattr(made.slides[slide].shapes[shape], side, Emu(value))

    return edit


def bullet(made: Any) -> None:
    looks = text(made).paragraphs[0]._p.get_or_add_pPr()
    looks.append(looks.makeelement(qn("a:buChar"), {"char": "*"}))


def fill(color: tuple[int, int, int]) -> Edit:
    def edit(made: Any) -> None:
        for slide in made.slides:
            slide.background.fill.solid()
            slide.background.fill.fore_color.rgb = RGBColor(*color)

    return edit


def note(made: Any) -> None:
    made.slides[0].notes_slide.notes_text_frame.text = "say hello"


def colored(made: Any) -> None:
    run(made).font.color.rgb = RGBColor(9, 9, 9)


DIFFERENCES: dict[str, tuple[str, Edit]] = {
    "text": ("examine_text", lambda d: setattr(run(d), "text", "other")),
    "size": ("examine_font_size", lambda d: setattr(run(d).font, "size", Pt(40))),
    "name": ("examine_font_name", lambda d: setattr(run(d).font, "name", "Arial")),
    "bold": ("examine_font_bold", lambda d: setattr(run(d).font, "bold", True)),
    "italic": ("examine_font_italic", lambda d: setattr(run(d).font, "italic", True)),
    "underline": ("examine_font_underline", lambda d: setattr(run(d).font, "underline", True)),
    "color": ("examine_color_rgb", lambda d: setattr(run(d).font.color, "rgb", RGBColor(1, 2, 3))),
    "strike": ("examine_strike_through", lambda d: run(d).font._element.set("strike", "sngStrike")),
    "place": ("examine_shape", place(1, 1, left=5)),
    "background": ("examine_background_color", fill((0, 0, 255))),
    "note": ("examine_note", note),
}


@pytest.mark.parametrize("name", share(DIFFERENCES, of=3))
def test_presentation_difference_counts_unless_its_option_is_off(name: str) -> None:
    option, edit = DIFFERENCES[name]
    start, changed = deck(colored if name == "color" else unchanged), deck(edit)
    assert compare(changed, changed) == 1.0
    assert compare(start, changed) == 0.0
    # OSWorld compares the texts of a slide's bullets too, whatever examine_text says.
    assert compare(start, changed, **{option: False}) == (0.0 if name == "text" else 1.0)
    assert compare(start, changed, **{option: False, "examine_bullets": False}) == 1.0


LAYOUTS: dict[str, tuple[Edit, tuple[str, ...]]] = {
    "bullet": (bullet, ("bullets",)),
    "alignment": (
        lambda d: setattr(text(d).paragraphs[1], "alignment", PP_ALIGN.CENTER),
        ("alignment", "bullets"),
    ),
    "indent": (lambda d: setattr(text(d).paragraphs[1], "level", 2), ("indent", "bullets")),
    "slides": (lambda d: d.slides.add_slide(d.slide_layouts[6]), ("number_of_slides",)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_presentation_layout_counts_unless_its_options_are_off(name: str) -> None:
    edit, off = LAYOUTS[name]
    options = {f"examine_{option}": False for option in off}
    changed = deck(edit)
    assert compare(changed, changed) == 1.0
    assert compare(deck(), changed) == 0.0
    assert compare(deck(), changed, **options) == 1.0


STRUCTURES: dict[str, Edit] = {
    "run": lambda d: text(d).paragraphs[0].add_run(),
    "paragraph": lambda d: text(d).add_paragraph(),
    "shape": lambda d: d.slides[0].shapes.add_textbox(*(Emu(9),) * 4),
    "bold cell": lambda d: setattr(cell_run(d).font, "bold", True),
    "empty cell": lambda d: cell_run(d)._r.getparent().remove(cell_run(d)._r),
    "group": lambda d: setattr(
        d.slides[2].shapes[3].shapes[0].text_frame.paragraphs[0], "alignment", PP_ALIGN.RIGHT
    ),
}


@pytest.mark.parametrize("name", share(STRUCTURES, of=3))
def test_presentation_structure_always_counts(name: str) -> None:
    changed = deck(STRUCTURES[name])
    assert compare(changed, changed) == 1.0
    assert compare(deck(), changed, examine_text=False, examine_bullets=False) == 0.0


IGNORED: dict[str, Edit] = {
    "bold off": lambda d: setattr(run(d).font, "bold", False),
    "wavy underline": lambda d: setattr(run(d).font, "underline", MSO_UNDERLINE.WAVY_LINE),
    "theme colour": lambda d: setattr(run(d).font.color, "theme_color", MSO_THEME_COLOR.ACCENT_1),
    "left": lambda d: setattr(text(d).paragraphs[0], "alignment", PP_ALIGN.LEFT),
    "half a percent": place(1, 1, left=900_000 + 4_000),
}


@pytest.mark.parametrize("name", IGNORED)
def test_presentation_difference_that_osworld_ignores_is_ignored(name: str) -> None:
    assert compare(deck(IGNORED[name]), deck(), examine_bullets=False) == 1.0


@pytest.mark.parametrize(
    ("option", "right", "wrong"),
    share(
        [
            ("title_bottom_position", place(0, 0, top=5_000_000), unchanged),
            ("table_bottom_position", place(2, 2, top=4_000_000), unchanged),
            ("right_position", place(1, 2, left=5_000_000), unchanged),
            ("top_position", place(1, 2, top=100_000), unchanged),
            ("shape_for_shift_size", place(0, 1, width=5), place(1, 1, width=5)),
            ("image_size", place(1, 2, left=5), place(1, 2, width=5)),
            ("modify_height", place(1, 2, left=5), place(1, 2, height=5)),
        ],
        of=3,
    ),
)
def test_presentation_place_is_checked_by_its_option(option: str, right: Edit, wrong: Edit) -> None:
    options = {"examine_shape": False, f"examine_{option}": True}
    assert compare(deck(right), deck(), **options) == 1.0
    assert compare(deck(wrong), deck(), **options) == 0.0


def stretched(made: Any) -> None:
    shape = made.slides[1].shapes[2]
    shape.left = shape.top = Emu(0)
    shape.width, shape.height = made.slide_width, made.slide_height


def first_slide_last(made: Any) -> None:
    order = made.slides._sldIdLst
    order.append(order[0])


def with_picture_first(edit: Edit = unchanged) -> bytes:
    def both(made: Any) -> None:
        edit(made)
        first_slide_last(made)

    return deck(both)


def transition(kind: str) -> Edit:
    def edit(made: Any) -> None:
        root = made.slides[0].element
        change = root.makeelement(qn("p:transition"), {})
        change.append(root.makeelement(qn(f"p:{kind}"), {}))
        root.append(change)

    return edit


def turned(made: Any) -> None:
    made.slide_width, made.slide_height = made.slide_height, made.slide_width


def number_color(value: str) -> Edit:
    def edit(made: Any) -> None:
        body = made.slide_masters[0].element
        for color in (value, "FFFFFF"):
            solid = body.makeelement(qn("a:solidFill"), {})
            solid.append(body.makeelement(qn("a:srgbClr"), {"val": color}))
            body.append(solid)

    return edit


@pytest.mark.parametrize(
    ("function", "rules", "right", "wrong"),
    [
        ("check_slide_orientation_Portrait", None, deck(turned), deck()),
        (
            "check_transition",
            {"slide_idx": 0, "transition_type": "dissolve"},
            deck(transition("dissolve")),
            deck(transition("wipe")),
        ),
        (
            "check_page_number_colors",
            {"color": "red"},
            deck(number_color("FF0000")),
            deck(number_color("0000FF")),
        ),
        (
            "evaluate_presentation_fill_to_rgb_distance",
            {"rgb": [0, 0, 255], "original_rgb": [255, 255, 255]},
            deck(fill((0, 0, 255))),
            deck(fill((255, 255, 255))),
        ),
        (
            "check_image_stretch_and_center",
            with_picture_first(),
            with_picture_first(stretched),
            with_picture_first(),
        ),
    ],
    ids=["portrait", "transition", "number colour", "fill", "image"],
)
def test_presentation_property_is_checked(
    function: str, rules: Any, right: bytes, wrong: bytes
) -> None:
    assert check(function, right, rules) == 1.0
    assert check(function, wrong, rules) == 0.0
    for broken in (b"", b"PK\x03\x04 nonsense", right[: len(right) // 2]):
        assert check(function, broken, rules) == 0.0


def test_fill_is_scored_by_distance() -> None:
    half = check(
        "evaluate_presentation_fill_to_rgb_distance", deck(fill((0, 0, 0))), {"rgb": [255] * 3}
    )
    near = check(
        "evaluate_presentation_fill_to_rgb_distance", deck(fill((0, 0, 250))), {"rgb": [0, 0, 255]}
    )
    assert half == 0.0
    assert near == pytest.approx(1 - 5 / (3**0.5 * 255))


def test_broken_presentation_scores_zero_and_broken_expected_one_raises() -> None:
    for broken in (b"", b"PK\x03\x04 nonsense", deck()[:9000]):
        assert compare(broken, deck()) == 0.0
        with pytest.raises(UnreadableError):
            compare(deck(), broken)


def test_part_that_python_pptx_cannot_read_scores_zero() -> None:
    def spoil(made: Any) -> None:
        made.slides[1].shapes[2].element.spPr.find(qn("a:xfrm"))[0].set("x", "far")

    assert compare(deck(spoil), deck()) == 0.0
