"""OSWorld's evaluator functions that run here, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit_linux_desktop.osworld.evaluators import (
    documents,
    matching,
    office_settings,
    pictures,
    presentations,
    printouts,
    tables,
    texts,
)
from envkit_linux_desktop.osworld.evaluators.values import Evaluator, File, UnreadableError

Problem = Callable[[Mapping[str, Any]], str | None]
"""Returns why rules cannot be used, or None if they can."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """An evaluator, and what a task file must give it."""

    run: Evaluator
    keys: Mapping[str, type] | None = None
    """Keys of the rules, which are its expected value; None if it takes no rules."""
    problem: Problem = lambda _: None
    """Checks rules that have the keys."""
    needs_gold: bool = True
    """Whether a function without rules needs an expected file."""


def _ruled(run: Evaluator, problem: Problem = lambda _: None, **keys: type) -> Function:
    return Function(run=run, keys=keys, problem=problem)


def _lone(run: Evaluator) -> Function:
    return Function(run=run, needs_gold=False)


def _json_problem(rules: Mapping[str, Any]) -> str | None:
    conditions = [*rules.get("expect", ()), *rules.get("unexpect", ())]
    return next((p for one in conditions if (p := matching.problem_of(one)) is not None), None)


def _list_problem(rules: Mapping[str, Any]) -> str | None:
    patterns = [*rules.get("expect", ()), *rules.get("unexpect", ())]
    return None if all(matching.compiles(one) for one in patterns) else "a bad pattern"


FUNCTIONS: Final[Mapping[str, Function]] = {
    "compare_table": _lone(tables.compare_table),
    "check_include_exclude": _ruled(texts.check_include_exclude),
    "exact_match": _ruled(texts.exact_match, expected=object),
    "match_in_list": _ruled(texts.match_in_list, expected=object),
    "is_in_list": _ruled(texts.is_in_list, expected=object),
    "literal_match": _lone(texts.literal_match),
    "fuzzy_match": _ruled(texts.fuzzy_match, expected=object),
    "compare_text_file": Function(run=texts.compare_text_file),
    "diff_text_file": Function(run=texts.diff_text_file),
    "file_contains": _ruled(texts.file_contains, expected=object),
    "check_line_number": _ruled(texts.check_line_number, expected=object),
    "compare_csv": Function(run=texts.compare_csv),
    "check_csv": _ruled(texts.check_csv),
    "check_list": _ruled(texts.check_list, _list_problem),
    "check_json": _ruled(texts.check_json, _json_problem),
    "check_direct_json_object": _ruled(texts.check_direct_json_object, expected=object),
    "check_moved_jpgs": _ruled(texts.check_moved_jpgs, expected=object),
    "compare_docx_files": Function(run=documents.compare_docx_files),
    "compare_docx_files_and_ignore_new_lines": Function(run=documents.ignore_new_lines),
    "compare_docx_tables": Function(run=documents.compare_docx_tables),
    "compare_docx_images": Function(run=documents.compare_docx_images),
    "compare_line_spacing": Function(run=documents.compare_line_spacing),
    "compare_init_lines": Function(run=documents.compare_init_lines),
    "compare_subscript_contains": Function(run=documents.compare_subscript_contains),
    "compare_font_names": _ruled(documents.compare_font_names, font_name=str),
    "compare_unique_train_records": Function(run=documents.unique_records),
    "check_tabstops": Function(run=documents.check_tabstops),
    "check_italic_font_size_14": Function(run=documents.italic_font_size_14),
    "contains_page_break": _ruled(documents.contains_page_break),
    "evaluate_strike_through_last_paragraph": Function(run=documents.strike_through_last_paragraph),
    "has_page_numbers_in_footers": _lone(documents.has_page_numbers_in_footers),
    "is_first_line_centered": _lone(documents.is_first_line_centered),
    "compare_contains_image": Function(run=documents.compare_contains_image),
    "compare_docx_lines": Function(run=documents.compare_docx_lines),
    "compare_references": Function(run=documents.compare_references),
    "evaluate_colored_words_in_tables": Function(run=documents.colored_words),
    "check_highlighted_words": Function(run=documents.highlight_removed),
    "find_default_font": _ruled(office_settings.default_font, font_name=str),
    "check_auto_saving_time": _ruled(office_settings.auto_saving_time, minutes=int),
    "check_presenter_console_disable": _lone(office_settings.presenter_console_disabled),
    "compare_pptx_files": Function(run=presentations.compare_pptx_files),
    "check_image_stretch_and_center": Function(run=presentations.image_stretched),
    "check_page_number_colors": _ruled(
        presentations.page_number_has_color, presentations.color_problem, color=str
    ),
    "check_slide_orientation_Portrait": _lone(presentations.is_portrait),
    "check_transition": _ruled(
        presentations.has_transition,
        presentations.transition_problem,
        slide_idx=int,
        transition_type=str,
    ),
    "evaluate_presentation_fill_to_rgb_distance": _ruled(
        presentations.fill_is_near, presentations.fill_problem, rgb=list
    ),
    "compare_pdfs": Function(run=printouts.compare_pdfs),
    "check_pdf_pages": _ruled(
        printouts.check_pdf_pages, printouts.problem_of, relation=str, ref_value=int
    ),
    "compare_images": Function(run=pictures.compare_images),
    "compare_archive": Function(run=pictures.compare_archive),
    "compare_zip_files": Function(run=pictures.compare_zip_files),
    "compare_image_list": Function(run=pictures.compare_image_list),
    "check_image_size": _ruled(pictures.check_image_size),
}
_NUMBERS: Final = ("approximately_tolerance", "reference_base_result", "threshold")
"""Options that are numbers below 1, or a colour difference."""


def problem_of(
    name: str, rules: object, options: Mapping[str, Any], *, has_gold: bool
) -> str | None:
    """Return why an evaluator cannot be used with these rules and options, or None if it can.

    Args:
        name: The function.
        rules: The rules of a literal expected value, else None.
        options: The task's options for it.
        has_gold: Whether there is an expected file.
    """
    function = FUNCTIONS.get(name)
    if function is None:
        return name
    if function.keys is not None:
        problem = _rules_problem(function, function.keys, rules)
        return None if problem is None else f"{name} {problem}"
    if name == "compare_table":
        problem = tables.problem_of(options, has_gold=has_gold)
        return None if problem is None else f"compare_table with {problem}"
    if function.needs_gold and not has_gold:
        return f"{name} without an expected file"
    if name == "compare_archive" and options.get("file_type", "text") not in pictures.BY_TYPE:
        return f"compare_archive of {options.get('file_type')!r}"
    for key in _NUMBERS:
        if not _is_number(options.get(key, 0), most=100.0 if key == "threshold" else 0.99):
            return f"{name} with {key}={options[key]!r:.40}"
    return None


def _is_number(value: object, *, most: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= cast(float, value) <= most


def _rules_problem(function: Function, keys: Mapping[str, type], rules: object) -> str | None:
    if not isinstance(rules, dict):
        return "without rules"
    fields = cast(dict[str, Any], rules)
    for key, kind in keys.items():
        if key not in fields:
            return f"without {key!r}"
        if not isinstance(fields[key], kind) or (kind is int and isinstance(fields[key], bool)):
            return f"with {key}={fields[key]!r:.40}"
    problem = function.problem(fields)
    return None if problem is None else f"with {problem}"


__all__ = ["FUNCTIONS", "Evaluator", "File", "UnreadableError", "problem_of"]
