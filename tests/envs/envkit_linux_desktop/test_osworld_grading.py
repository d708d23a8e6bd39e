"""OSWorld evaluators on real documents."""

import io
import zipfile
from collections.abc import Callable
from typing import Any

import docx
import openpyxl
import pytest
from fakes.osworld import saved
from PIL import Image as PilImage

from envkit.errors import EnvFault, FaultKind
from envkit.grading import UngradedError
from envkit_linux_desktop.osworld import grading
from envkit_linux_desktop.osworld.evaluators import FUNCTIONS, File, UnreadableError, matching
from envkit_linux_desktop.osworld.evaluators.values import MAX_COMPARED, similarity
from envkit_linux_desktop.osworld.grading import Comparison, evaluate, score


def workbook(edit: Callable[[Any], None] = lambda sheet: None) -> bytes:
    book: Any = openpyxl.Workbook()
    for row in [("item", "price"), ("tea", 3), ("rice", 5.00001), ("salt", 1)]:
        book.active.append(row)
    edit(book.active)
    return saved(book)


def document(*texts: str, edit: Callable[[Any], None] = lambda made: None) -> bytes:
    made = docx.Document()
    for text in texts:
        made.add_paragraph(text)
    edit(made)
    return saved(made)


def own(data: bytes, name: str = "own.xlsx", **others: bytes) -> File:
    renamed = {key.replace("_", "-") + ".csv": value for key, value in others.items()}
    return File(name=name, data=data, is_result=True, others=renamed)


def gold(data: bytes, name: str = "gold.xlsx", **others: bytes) -> File:
    renamed = {key.replace("_", "-") + ".csv": value for key, value in others.items()}
    return File(name=name, data=data, is_result=False, others=renamed)


def run(function: str, result: Any, expected: Any = None, **options: Any) -> float:
    comparison = Comparison(function=function, result=result, expected=expected, options=options)
    return evaluate(comparison)


def table(one: bytes, two: bytes, **rule: Any) -> float:
    pair = {"sheet_idx0": 0, "sheet_idx1": "EI0"}
    return run("compare_table", own(one), gold(two), rules=[{**pair, **rule}])


def edited(place: str, value: Any) -> bytes:
    return workbook(lambda sheet: sheet.__setitem__(place, value))


def styled(place: str, **looks: Any) -> bytes:
    def edit(sheet: Any) -> None:
        for name, value in looks.items():
            setattr(sheet[place], name, value)

    return workbook(edit)


def chart(title: str) -> bytes:
    from openpyxl.chart import BarChart, Reference

    def edit(sheet: Any) -> None:
        bars = BarChart()
        bars.title = title
        bars.add_data(Reference(sheet, min_col=2, min_row=1, max_row=4), titles_from_data=True)
        sheet.add_chart(bars, "D2")

    return workbook(edit)


def test_sheet_data_compares_values_to_a_precision() -> None:
    rule = {"type": "sheet_data"}
    assert table(workbook(), edited("B3", 5), **rule) == 1.0
    assert table(workbook(), edited("B3", 5.1), **rule) == 0.0
    assert table(workbook(), edited("D9", "x"), **rule) == 0.0
    assert table(workbook(), edited("D9", ""), **rule) == 1.0
    assert table(edited("B2", "3"), workbook(), **rule) == 0.0


@pytest.mark.parametrize("place", ["RNNone", "RI7"])
def test_missing_sheet_scores_zero(place: str) -> None:
    assert table(workbook(), workbook(), type="sheet_data", sheet_idx0=place) == 0.0


def test_check_cell_reads_values_and_looks() -> None:
    from openpyxl.styles import Font

    bold = styled("B2", font=Font(bold=True))
    rule = {
        "type": "check_cell",
        "sheet_idx": 0,
        "coordinate": "B2",
        "props": {
            "value": {"method": "approx:0.1", "ref": 3.05},
            "font_bold": {"method": "eq", "ref": True},
        },
    }
    assert run("compare_table", own(bold), None, rules=[rule]) == 1.0
    assert run("compare_table", own(workbook()), None, rules=[rule]) == 0.0


@pytest.mark.parametrize(
    ("rule", "same", "other"),
    [
        ({"type": "chart", "chart_props": ["type", "title"]}, chart("Sales"), chart("Costs")),
        (
            {"type": "freeze"},
            workbook(lambda sheet: setattr(sheet, "freeze_panes", "A2")),
            workbook(),
        ),
        (
            {"type": "row_props", "props": ["hidden"]},
            workbook(lambda sheet: setattr(sheet.row_dimensions[3], "hidden", True)),
            workbook(),
        ),
        (
            {"type": "row_props", "props": ["hidden"]},
            workbook(),
            workbook(lambda sheet: setattr(sheet.row_dimensions[3], "height", 30)),
        ),
        (
            {"type": "filter"},
            workbook(lambda sheet: setattr(sheet.auto_filter, "ref", "A1:B4")),
            workbook(),
        ),
        (
            {"type": "style", "props": ["number_format"]},
            styled("B3", number_format="0.00"),
            workbook(),
        ),
    ],
    ids=["chart", "freeze", "row_props", "rows", "filter", "style"],
)
def test_table_rule_tells_equal_from_different(
    rule: dict[str, Any], same: bytes, other: bytes
) -> None:
    assert table(same, same, **rule) == 1.0
    assert table(other, same, **rule) == 0.0


def test_sheet_names_and_fuzzy_ranges_are_compared() -> None:
    assert table(workbook(), workbook(), type="sheet_name") == 1.0
    renamed = workbook(lambda sheet: setattr(sheet, "title", "Prices"))
    assert table(renamed, workbook(), type="sheet_name") == 0.0
    fuzzy = {
        "type": "sheet_fuzzy",
        "rules": [{"range": ["A2:A4"], "type": "fuzzy_match", "threshold": 70}],
    }
    assert table(edited("A3", "ryce"), workbook(), **fuzzy) == 1.0
    assert table(edited("A3", "bread"), workbook(), **fuzzy) == 0.0


def test_sheet_print_compares_exported_csv_files() -> None:
    rule = {"type": "sheet_print", "sheet_idx0": "RNSheet", "sheet_idx1": "ENSheet"}
    left = own(workbook(), "a.xlsx", a_Sheet=b"tea,3.00\n\n")
    right = gold(workbook(), "b.xlsx", b_Sheet=b"tea,3.00\n")
    assert run("compare_table", left, right, rules=[rule]) == 1.0
    bare = own(workbook(), "a.xlsx")
    assert run("compare_table", bare, right, rules=[rule]) == 0.0


def test_data_validation_is_checked() -> None:
    from openpyxl.worksheet.datavalidation import DataValidation

    def edit(sheet: Any) -> None:
        choice = DataValidation(type="list", formula1='"Pass,Fail"')
        choice.add("D2:D9")
        sheet.add_data_validation(choice)

    rule = {
        "type": "data_validation",
        "sheet_idx": 0,
        "dv_props": [
            {
                "ranges": {"method": "spreadsheet_range", "ref": ["D2:D9", "D1:D20"]},
                "formula1": {"method": "str_set_eq", "ref": ["Fail", "Pass"]},
            }
        ],
    }
    assert run("compare_table", own(workbook(edit)), None, rules=[rule]) == 1.0
    assert run("compare_table", own(workbook()), None, rules=[rule]) == 0.0


def test_documents_are_compared_by_their_options() -> None:
    def compare(one: bytes, two: bytes, **options: Any) -> float:
        files = own(one, "a.docx"), gold(two, "b.docx")
        return run("compare_docx_files", *files, **options)

    assert compare(document("One", "two"), document("One  two")) == 1.0
    assert compare(document("One", "two"), document("One  two"), ignore_blanks=False) == 0.0
    assert compare(document("one"), document("ONE")) == 0.0
    assert compare(document("one"), document("ONE"), ignore_case=True) == 1.0
    assert compare(document("a", "b"), document("b", "a"), ignore_order=True) == 1.0
    assert compare(document("abcd"), document("abcx"), fuzzy_match=True) == 0.75
    assert run("compare_docx_files", None, gold(document("a"), "b.docx")) == 0.0


def test_looks_of_documents_are_checked() -> None:
    def struck(made: Any) -> None:
        made.paragraphs[-1].runs[0].font.strike = True

    def double(made: Any) -> None:
        made.paragraphs[0].paragraph_format.line_spacing = 2.0

    plain, gone = document("a", "b"), document("a", "b", edit=struck)
    name = "evaluate_strike_through_last_paragraph"
    assert run(name, own(gone, "a.docx"), gold(gone, "b.docx")) == 1.0
    assert run(name, own(plain, "a.docx"), gold(gone, "b.docx")) == 0.0
    spaced = document("a", "b", edit=double)
    assert run("compare_line_spacing", own(spaced, "a.docx"), gold(spaced, "b.docx")) == 1.0
    assert run("compare_line_spacing", own(plain, "a.docx"), gold(spaced, "b.docx")) == 0.0
    broken = document("a", edit=lambda made: made.add_page_break())
    rules = {"page_break_count": 1}
    assert run("contains_page_break", own(broken, "a.docx"), rules) == 1.0
    assert run("contains_page_break", own(plain, "a.docx"), rules) == 0.0


@pytest.mark.parametrize(
    ("function", "result", "expected", "wanted"),
    [
        ("check_include_exclude", "a b", {"include": ["a"], "exclude": ["c"]}, 1.0),
        ("check_include_exclude", "a c", {"include": ["a"], "exclude": ["c"]}, 0.0),
        ("exact_match", "1\n", {"expected": "1\n"}, 1.0),
        ("exact_match", "1", {"expected": "1\n"}, 0.0),
        ("match_in_list", "b", {"expected": ["a", "b"]}, 1.0),
        ("is_in_list", ["a"], {"expected": "b"}, 0.0),
        ("check_direct_json_object", "{'a': 1, 'b': 2}", {"expected": {"a": 1}}, 1.0),
        ("check_direct_json_object", "nonsense", {"expected": {"a": 1}}, 0.0),
        ("check_list", own(b"x 1\ny 2\n", "a.out"), {"expect": [r"y \d"], "unexpect": ["z"]}, 1.0),
        ("check_list", own(b"x 1\nz\n", "a.out"), {"expect": [r"x \d"], "unexpect": ["z"]}, 0.0),
        ("check_csv", own(b"a,b\n1,2\n", "a.csv"), {"expect": [{"a": "1", "b": "2"}]}, 1.0),
        ("check_csv", own(b"a,b\n1,2\n", "a.csv"), {"unexpect": [{"b": "2"}]}, 0.0),
        (
            "check_json",
            own(b'{"a": {"b": 3}}', "a.json"),
            {"expect": [{"key": ["a", "b"], "method": "ge", "ref": 3}]},
            1.0,
        ),
        (
            "check_json",
            own(b'{"a": 1}', "a.json"),
            {"expect": [{"key": ["a", "b"], "method": "eq", "ref": 3}]},
            0.0,
        ),
        (
            "check_json",
            own(b'{"a": 1}', "a.json"),
            {"unexpect": [{"key": ["b"], "method": "ne", "ref": 3}]},
            0.0,
        ),
        (
            "check_direct_json_object",
            '{"a": ["x", "y"]}',
            {"expected": {"a": "x"}, "expect_in_result": True},
            1.0,
        ),
        (
            "check_direct_json_object",
            '{"a": "1"}',
            {"expected": {"a": 1}, "expect_in_result": True},
            0.0,
        ),
        ("file_contains", own(b"Ping Upload", "a.txt"), {"expected": ["Ping"]}, 1.0),
        ("check_line_number", own(b"10:00:01 x\nno\n", "a.txt"), {"expected": "1"}, 1.0),
        ("compare_text_file", own(b"a\r\nb", "a.txt"), gold(b"a\nb", "b.txt"), 1.0),
        ("diff_text_file", own(b"a\nb", "a.txt"), gold(b"a\nc", "b.txt"), 0.5),
        ("compare_csv", own(b"a,b", "a.csv"), [gold(b"x", "1.csv"), gold(b"a,b", "2.csv")], 1.0),
    ],
)
def test_text_evaluator_scores(function: str, result: Any, expected: Any, wanted: float) -> None:
    assert run(function, result, expected) == wanted


def test_archives_are_compared_by_their_members() -> None:
    def packed(**texts: str) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, text in texts.items():
                archive.writestr(f"{name}.txt", text)
        return stream.getvalue()

    files = own(packed(a="1", b="2"), "a.zip"), gold(packed(a="1", b="3"), "b.zip")
    assert run("compare_archive", *files, file_type="text") == 0.5
    assert run("compare_zip_files", files[1], files[1]) == 1.0
    assert run("compare_zip_files", *files) == 0.0


@pytest.mark.parametrize(
    ("value", "rule", "expected"),
    [
        (5, {"method": "range.te", "ref": [0, 5]}, True),
        (0, {"method": "range.te", "ref": [0, 5]}, False),
        ("Total", {"method": "re.IGNORECASE", "ref": "^total$"}, True),
        (None, {"method": "lt", "ref": 3}, False),
    ],
)
def test_value_is_matched_to_a_rule(value: Any, rule: dict[str, Any], expected: bool) -> None:
    assert matching.problem_of(rule) is None
    assert matching.matches(value, rule) is expected


def test_similarity_is_twice_the_common_subsequence_over_both_lengths() -> None:
    assert similarity("abcd", "axcd") == 0.75
    assert similarity("", "") == 1.0
    assert similarity("ab", "cd") == 0.0


def test_similarity_of_a_huge_text_takes_no_time() -> None:
    huge = "ab" * MAX_COMPARED
    assert similarity(huge, huge) == 1.0
    assert similarity(huge, huge + "c") == 0.0


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 nonsense", b"text"])
@pytest.mark.parametrize("function", ["compare_table", "compare_docx_files", "compare_zip_files"])
def test_broken_result_scores_zero_and_broken_expected_file_raises(
    function: str, data: bytes
) -> None:
    name = "a.docx" if "docx" in function else "a.xlsx"
    good = document("a") if "docx" in function else workbook()
    rules = [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]
    assert run(function, own(data, name), gold(good, name), rules=rules) == 0.0
    with pytest.raises(UnreadableError):
        run(function, own(good, name), gold(data, name), rules=rules)


def test_grading_process_scores_and_reports_a_failing_evaluator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}
    good = Comparison(
        function="compare_table", result=own(workbook()), expected=gold(workbook()), options=rules
    )
    assert score(good) == 1.0
    broken = Comparison(
        function="compare_table", result=own(workbook()), expected=gold(b"x"), options=rules
    )
    with pytest.raises(UngradedError, match="compare_table"):
        score(broken)


def test_evaluator_killed_for_want_of_memory_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")
    comparison = Comparison(function="compare_table", result=None, expected=None, options={})
    with pytest.raises(EnvFault, match="compare_table") as caught:
        score(comparison)
    assert caught.value.kind is FaultKind.GRADER


@pytest.mark.slow
def test_document_that_expands_without_end_scores_zero() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", b" " * (80 << 20))
    rules = {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}
    bomb = Comparison(
        function="compare_table",
        result=own(stream.getvalue()),
        expected=gold(workbook()),
        options=rules,
    )
    assert score(bomb) == 0.0


def test_every_function_scores_zero_without_a_result_file() -> None:
    rules = {"expected": ["x"], "font_name": "x"}
    for name in FUNCTIONS.keys() - {"exact_match", "match_in_list", "literal_match"}:
        assert run(name, None, rules) == 0.0, name


def test_images_are_compared_upright() -> None:
    def photo(orientation: int) -> bytes:
        exif, stream = PilImage.Exif(), io.BytesIO()
        exif[0x0112] = orientation
        PilImage.linear_gradient("L").resize((24, 12)).save(stream, "PNG", exif=exif)
        return stream.getvalue()

    turned = io.BytesIO()
    with PilImage.open(io.BytesIO(photo(1))) as stored:
        stored.transpose(PilImage.Transpose.ROTATE_180).save(turned, "PNG")

    same = [own(photo(3), "a.png")], [gold(turned.getvalue(), "b.png")]
    assert run("compare_image_list", *same) == 1.0
    assert run("compare_image_list", [own(photo(1), "a.png")], same[1]) == 0.0
    assert run("check_image_size", own(photo(6), "a.png"), {"width": 12, "height": 24}) == 1.0


def test_images_with_other_colours_differ() -> None:
    def picture(mode: str, colour: Any) -> bytes:
        stream = io.BytesIO()
        PilImage.new(mode, (20, 10), colour).save(stream, "PNG")
        return stream.getvalue()

    def same(one: bytes, two: bytes) -> float:
        return run("compare_image_list", [own(one, "a.png")], [gold(two, "b.png")])

    assert same(picture("RGB", "red"), picture("RGB", "red")) == 1.0
    assert same(picture("RGB", "red"), picture("RGB", "blue")) == 0.0
    assert same(picture("RGBA", (9, 9, 9, 9)), picture("RGBA", (9, 9, 9, 8))) == 0.0
    assert same(picture("RGBA", (9, 9, 9, 9)), picture("RGBA", (9, 9, 8, 9))) == 0.0
