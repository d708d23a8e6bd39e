"""OSWorld's evaluator functions that run here, by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from envkit_linux_desktop.osworld.evaluators import (
    documents,
    matching,
    office_settings,
    pictures,
    presentation_parts,
    presentations,
    printouts,
    tables,
    texts,
)
from envkit_linux_desktop.osworld.evaluators.values import File, UnreadableError

Evaluator = Callable[[Any, Any, Mapping[str, Any]], float]

FUNCTIONS: Final[dict[str, Evaluator]] = {
    "compare_table": tables.compare_table,
    "check_include_exclude": texts.check_include_exclude,
    "exact_match": texts.exact_match,
    "match_in_list": texts.match_in_list,
    "is_in_list": texts.is_in_list,
    "literal_match": texts.literal_match,
    "fuzzy_match": texts.fuzzy_match,
    "compare_text_file": texts.compare_text_file,
    "diff_text_file": texts.diff_text_file,
    "file_contains": texts.file_contains,
    "check_line_number": texts.check_line_number,
    "compare_csv": texts.compare_csv,
    "check_csv": texts.check_csv,
    "check_list": texts.check_list,
    "check_json": texts.check_json,
    "check_direct_json_object": texts.check_direct_json_object,
    "check_moved_jpgs": texts.check_moved_jpgs,
    "compare_docx_files": documents.compare_docx_files,
    "compare_docx_files_and_ignore_new_lines": documents.ignore_new_lines,
    "compare_docx_tables": documents.compare_docx_tables,
    "compare_docx_images": documents.compare_docx_images,
    "compare_line_spacing": documents.compare_line_spacing,
    "compare_init_lines": documents.compare_init_lines,
    "compare_subscript_contains": documents.compare_subscript_contains,
    "compare_font_names": documents.compare_font_names,
    "compare_unique_train_records": documents.unique_records,
    "check_tabstops": documents.check_tabstops,
    "check_italic_font_size_14": documents.italic_font_size_14,
    "contains_page_break": documents.contains_page_break,
    "evaluate_strike_through_last_paragraph": documents.strike_through_last_paragraph,
    "has_page_numbers_in_footers": documents.has_page_numbers_in_footers,
    "is_first_line_centered": documents.is_first_line_centered,
    "compare_contains_image": documents.compare_contains_image,
    "compare_docx_lines": documents.compare_docx_lines,
    "compare_references": documents.compare_references,
    "evaluate_colored_words_in_tables": documents.colored_words,
    "check_highlighted_words": documents.highlight_removed,
    "find_default_font": office_settings.default_font,
    "check_auto_saving_time": office_settings.auto_saving_time,
    "check_presenter_console_disable": office_settings.presenter_console_disabled,
    "compare_pptx_files": presentations.compare_pptx_files,
    "check_image_stretch_and_center": presentation_parts.image_stretched,
    "check_page_number_colors": presentation_parts.page_number_has_color,
    "check_slide_orientation_Portrait": presentation_parts.is_portrait,
    "check_transition": presentation_parts.has_transition,
    "evaluate_presentation_fill_to_rgb_distance": presentation_parts.fill_is_near,
    "compare_pdfs": printouts.compare_pdfs,
    "check_pdf_pages": printouts.check_pdf_pages,
    "compare_images": pictures.compare_images,
    "compare_archive": pictures.compare_archive,
    "compare_zip_files": pictures.compare_zip_files,
    "compare_image_list": pictures.compare_image_list,
    "check_image_size": pictures.check_image_size,
}
_EXPECTED: Final = (
    "exact_match",
    "match_in_list",
    "is_in_list",
    "fuzzy_match",
    "file_contains",
    "check_line_number",
    "check_direct_json_object",
    "check_moved_jpgs",
)
_KEYS: Final[dict[str, Mapping[str, type]]] = {
    **{name: {"expected": object} for name in _EXPECTED},
    "check_include_exclude": {},
    "check_csv": {},
    "check_list": {},
    "check_json": {},
    "contains_page_break": {},
    "check_image_size": {},
    "compare_font_names": {"font_name": str},
    "find_default_font": {"font_name": str},
    "check_auto_saving_time": {"minutes": int},
    "check_pdf_pages": {"relation": str, "ref_value": int},
    "check_page_number_colors": {"color": str},
    "check_transition": {"slide_idx": int, "transition_type": str},
    "evaluate_presentation_fill_to_rgb_distance": {"rgb": list},
}
"""Functions whose expected value is an object of rules, with the keys that it must have."""
_ALONE: Final = {
    "compare_table",
    "literal_match",
    "is_first_line_centered",
    "has_page_numbers_in_footers",
    "check_slide_orientation_Portrait",
    "check_presenter_console_disable",
}
"""Functions without rules that do not need an expected file."""
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
    if name not in FUNCTIONS:
        return name
    if name in _KEYS:
        return _rules_problem(name, rules)
    if name == "compare_table":
        problem = tables.problem_of(options, has_gold=has_gold)
        return None if problem is None else f"compare_table with {problem}"
    if name not in _ALONE and not has_gold:
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


def _rules_problem(name: str, rules: object) -> str | None:
    if not isinstance(rules, dict):
        return f"{name} without rules"
    fields = cast(dict[str, Any], rules)
    for key, kind in _KEYS[name].items():
        if key not in fields:
            return f"{name} without {key!r}"
        if not isinstance(fields[key], kind) or (kind is int and isinstance(fields[key], bool)):
            return f"{name} with {key}={fields[key]!r:.40}"
    check = _CHECKS.get(name)
    problem = None if check is None else check(fields)
    return None if problem is None else f"{name} with {problem}"


def _json_problem(rules: Mapping[str, Any]) -> str | None:
    conditions = [*rules.get("expect", ()), *rules.get("unexpect", ())]
    return next((p for one in conditions if (p := matching.problem_of(one)) is not None), None)


def _list_problem(rules: Mapping[str, Any]) -> str | None:
    patterns = [*rules.get("expect", ()), *rules.get("unexpect", ())]
    return None if all(matching.compiles(one) for one in patterns) else "a bad pattern"


_CHECKS: Final[dict[str, Callable[[Mapping[str, Any]], str | None]]] = {
    "check_json": _json_problem,
    "check_list": _list_problem,
    "check_pdf_pages": printouts.problem_of,
    "check_page_number_colors": presentation_parts.color_problem,
    "check_transition": presentation_parts.transition_problem,
    "evaluate_presentation_fill_to_rgb_distance": presentation_parts.fill_problem,
}


__all__ = ["FUNCTIONS", "Evaluator", "File", "UnreadableError", "problem_of"]
