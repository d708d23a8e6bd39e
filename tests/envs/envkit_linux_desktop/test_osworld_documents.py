"""OSWorld evaluators of PDF files, images, settings and the looks of text documents."""

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import docx
import numpy as np
import pytest
from docx.shared import RGBColor
from fakes.osworld import saved
from PIL import Image

from envkit_linux_desktop.osworld.evaluators import File, UnreadableError, documents
from envkit_linux_desktop.osworld.grading import Comparison, evaluate

RED, BLUE = (255, 0, 0), (0, 0, 255)
BROKEN = (b"", b"%PDF-1.4 nonsense", b"PK\x03\x04 nonsense", b"<a")


def pdf(*pages: str) -> bytes:
    """Return a PDF file with one line of text per page."""
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        parts.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources "
            f"<< /Font << /F1 3 0 R >> >> /Contents {5 + 2 * index} 0 R >>"
        )
        parts.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    body, offsets = "%PDF-1.4\n", list[int]()
    for number, part in enumerate(parts, start=1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{part}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(parts) + 1
    body += f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n"
    return f"{body}<< /Size {size} /Root 1 0 R >>\nstartxref\n0\n%%EOF\n".encode()


def own(data: bytes, name: str) -> File:
    return File(name=name, data=data, is_result=True)


def gold(data: bytes, name: str) -> File:
    return File(name=name, data=data, is_result=False)


def run(function: str, result: Any, expected: Any = None, **options: Any) -> float:
    comparison = Comparison(function=function, result=result, expected=expected, options=options)
    return evaluate(comparison)


def compare(function: str, ending: str, one: bytes, two: bytes, **options: Any) -> float:
    return run(function, own(one, f"a.{ending}"), gold(two, f"b.{ending}"), **options)


def test_pdf_files_are_scored_by_the_similarity_of_their_texts() -> None:
    assert compare("compare_pdfs", "pdf", pdf("hello", "world"), pdf("hello", "world")) == 1.0
    assert compare("compare_pdfs", "pdf", pdf("abcd"), pdf("abxd")) == 0.75
    pair = [own(pdf("one"), "1.pdf"), own(pdf("two"), "2.pdf")]
    assert run("compare_pdfs", pair, [gold(pdf("one"), "1.pdf"), None]) == 0.5
    assert run("compare_pdfs", None, gold(pdf("one"), "1.pdf")) == 0.0


def test_broken_pdf_file_in_either_place_costs_the_one_who_left_it() -> None:
    for broken in BROKEN:
        assert compare("compare_pdfs", "pdf", broken, pdf("one")) == 0.0
        # A task may name the policy's files as the expected ones.
        assert run("compare_pdfs", gold(pdf("one"), "1.pdf"), own(broken, "2.pdf")) == 0.0
        with pytest.raises(UnreadableError):
            compare("compare_pdfs", "pdf", pdf("one"), broken)


def test_pdf_pages_are_counted() -> None:
    rules = {"relation": "eq", "ref_value": 1}
    assert run("check_pdf_pages", own(pdf("one"), "a.pdf"), rules) == 1.0
    assert run("check_pdf_pages", own(pdf("one", "two"), "a.pdf"), rules) == 0.0
    assert [run("check_pdf_pages", own(data, "a.pdf"), rules) for data in BROKEN] == [0.0] * 4


def test_archive_of_pdf_files_is_compared_by_their_texts() -> None:
    def packed(*texts: str) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for number, text in enumerate(texts):
                archive.writestr(f"{number}.pdf", pdf(text))
        return stream.getvalue()

    options = {"file_type": "pdf"}
    assert compare("compare_archive", "zip", packed("a", "b"), packed("a", "b"), **options) == 1.0
    assert compare("compare_archive", "zip", packed("a", "b"), packed("a", "c"), **options) == 0.5
    assert compare("compare_archive", "zip", packed("a"), packed("a", "c"), **options) == 0.0


def test_pdf_files_in_a_zip_file_need_only_like_texts() -> None:
    def packed(text: str, note: str = "n") -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("essay.pdf", pdf(text))
            archive.writestr("note.txt", note)
        return stream.getvalue()

    essay = "word " * 20
    expected = packed(essay)
    assert compare("compare_zip_files", "zip", packed(essay + "x"), expected) == 1.0
    assert compare("compare_zip_files", "zip", packed("other"), expected) == 0.0
    assert compare("compare_zip_files", "zip", packed(essay, "N"), expected) == 0.0


def image(seed: int, *, width: int = 40, noise: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (30, width, 3))
    pixels = pixels + np.random.default_rng(9).integers(-noise, noise + 1, pixels.shape)
    stream = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(stream, "png")
    return stream.getvalue()


def test_images_are_scored_by_structural_similarity() -> None:
    assert compare("compare_images", "png", image(1), image(1)) == pytest.approx(1.0)
    # The next three are what scikit-image 0.26 gives for these pixels.
    assert compare("compare_images", "png", image(1), image(2)) == pytest.approx(0.0051695376)
    near = image(1, noise=20), image(1)
    assert compare("compare_images", "png", *near) == pytest.approx(0.9885684655)
    based = compare("compare_images", "png", *near, reference_base_result=0.5)
    assert based == pytest.approx(0.9771369311)
    assert compare("compare_images", "png", image(1), image(2), reference_base_result=0.5) == 0.0
    assert compare("compare_images", "png", image(1, width=5), image(1, width=5)) == 0.0
    assert compare("compare_images", "png", b"x", image(1)) == 0.0


@pytest.mark.parametrize(
    ("one", "two", "wanted"),
    [
        (RED, RED, 0.0),
        ((255, 0, 0), (0, 0, 255), 52.8814),
        ((10, 200, 30), (12, 180, 60), 6.5507),
        ((128, 128, 128), (0, 0, 0), 39.9345),
    ],
)
def test_color_difference_is_ciede2000(
    one: Sequence[int], two: Sequence[int], wanted: float
) -> None:
    assert documents.difference(one, two) == pytest.approx(wanted, abs=1e-4)


def words(*cells: tuple[str, tuple[int, int, int] | None], text: str = "list") -> bytes:
    made = docx.Document()
    made.add_paragraph(text)
    row = made.add_table(1, max(len(cells), 1)).rows[0]
    for cell, (word, color) in zip(row.cells, cells, strict=False):
        run = cell.paragraphs[0].add_run(word)
        if color is not None:
            run.font.color.rgb = RGBColor(*color)
    return saved(made)


def test_words_in_tables_have_the_colour_of_their_first_letter() -> None:
    name, expected = "evaluate_colored_words_in_tables", words()
    right = words(("apple", RED), ("bee", (2, 2, 254)))
    assert compare(name, "docx", right, expected) == 1.0
    for wrong in (
        words(("apple", BLUE)),
        words(("bee", RED)),
        words(("bee", None)),
        words(("bee", BLUE), text="other"),
        b"x",
    ):
        assert compare(name, "docx", wrong, expected) == 0.0


def letter(*paragraphs: str, picture: bool = False) -> bytes:
    made = docx.Document()
    for text in paragraphs:
        made.add_paragraph(text)
    if picture:
        made.paragraphs[0].runs[0].add_picture(io.BytesIO(image(1)))
    return saved(made)


def test_pictures_stand_in_the_same_runs() -> None:
    name, plain, shown = "compare_contains_image", letter("a"), letter("a", picture=True)
    assert compare(name, "docx", shown, shown) == 1.0
    assert compare(name, "docx", plain, shown) == 0.0
    assert compare(name, "docx", b"x", shown) == 0.0


def test_spacing_is_compared_without_blanks_of_the_texts() -> None:
    def spaced(*texts: str, spacing: float = 2.0) -> bytes:
        made = docx.Document()
        for text in texts:
            made.add_paragraph(text).paragraph_format.line_spacing = spacing
        return saved(made)

    expected = spaced("one two", "three")
    assert compare("compare_line_spacing", "docx", spaced("one  two", "three"), expected) == 1.0
    assert compare("compare_line_spacing", "docx", spaced("one two three"), expected) == 0.0
    single = spaced("one two", "three", spacing=1.0)
    assert compare("compare_line_spacing", "docx", single, expected) == 0.0


def test_lines_are_compared_as_a_set() -> None:
    assert compare("compare_docx_lines", "docx", letter("b", "a", ""), letter("a", "b")) == 1.0
    assert compare("compare_docx_lines", "docx", letter("a"), letter("a", "b")) == 0.0


def test_references_are_scored_above_the_base() -> None:
    def score(one: bytes, *entries: str) -> float:
        options = {"reference_base_result": 0.6}
        two = letter("t", "References", *entries)
        return compare("compare_references", "docx", one, two, **options)

    assert score(letter("x", "References", "abcd"), "abcd") == 1.0
    assert score(letter("x", "References", "abcd"), "abxd") == pytest.approx(0.15 / 0.4)
    assert score(letter("x", "References", "abcd"), "wxyz") == 0.0
    assert score(letter("x", "References", "abcd"), "abcd", "efgh") == 0.0
    assert score(letter("x", "abcd"), "abcd") == 0.0
    assert score(b"x", "abcd") == 0.0


def odt(background: str, text: str = "two") -> bytes:
    names = "urn:oasis:names:tc:opendocument:xmlns"
    content = (
        f'<office:document-content xmlns:office="{names}:office:1.0" xmlns:text="{names}:text:1.0" '
        f'xmlns:style="{names}:style:1.0" xmlns:fo="{names}:xsl-fo-compatible:1.0">'
        '<office:automatic-styles><style:style style:name="T1" style:family="text">'
        f'<style:text-properties fo:background-color="{background}"/></style:style>'
        "</office:automatic-styles><office:body><office:text><text:p>one "
        f'<text:span text:style-name="T1">{text}<text:s/>end</text:span> three</text:p>'
        "</office:text></office:body></office:document-content>"
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("content.xml", content)
    return stream.getvalue()


def test_yellow_background_must_be_gone() -> None:
    name, expected = "check_highlighted_words", odt("transparent")
    assert compare(name, "odt", odt("transparent"), expected) == 1.0
    assert compare(name, "odt", odt("#ffff00"), expected) == 0.0
    assert compare(name, "odt", odt("transparent", "other"), expected) == 0.0
    assert compare(name, "odt", b"x", expected) == 0.0


@pytest.mark.parametrize(
    ("function", "path", "setting", "rules", "right", "wrong"),
    [
        (
            "check_auto_saving_time",
            "Common/Save/Document",
            "AutoSaveTimeIntervall",
            {"minutes": 3},
            "3",
            ("4", "soon", "", "9" * 5000),
        ),
        (
            "find_default_font",
            "Writer/DefaultFont",
            "Standard",
            {"font_name": "Arial"},
            "Arial",
            ("Times", ""),
        ),
        (
            "check_presenter_console_disable",
            "Impress/Misc/Start",
            "EnablePresenterScreen",
            None,
            "false",
            ("true", ""),
        ),
    ],
)
def test_office_setting_is_read(
    function: str,
    path: str,
    setting: str,
    rules: dict[str, Any] | None,
    right: str,
    wrong: tuple[str, ...],
) -> None:
    def settings(value: str, place: str = path) -> File:
        data = (
            '<oor:items xmlns:oor="http://openoffice.org/2001/registry">'
            f'<item oor:path="/org.openoffice.Office.{place}"><prop oor:name="{setting}">'
            f"<value>{value}</value></prop></item></oor:items>"
        )
        return own(data.encode(), "registrymodifications.xcu")

    assert run(function, settings(right), rules) == 1.0
    assert [run(function, settings(value), rules) for value in wrong] == [0.0] * len(wrong)
    assert run(function, settings(right, "Other"), rules) == 0.0
    assert [run(function, own(data, "x.xcu"), rules) for data in BROKEN] == [0.0] * 4
