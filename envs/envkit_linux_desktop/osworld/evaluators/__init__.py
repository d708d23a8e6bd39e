"""OSWorld's evaluator functions that run here, by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from envkit_linux_desktop.osworld.evaluators import documents, matching, pictures, tables, texts
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
    "compare_archive": pictures.compare_archive,
    "compare_zip_files": pictures.compare_zip_files,
    "compare_image_list": pictures.compare_image_list,
    "check_image_size": pictures.check_image_size,
}
_EXPECTED: Final = {
    "exact_match",
    "match_in_list",
    "is_in_list",
    "fuzzy_match",
    "file_contains",
    "check_line_number",
    "check_direct_json_object",
    "check_moved_jpgs",
}
"""Functions whose rules need the key `expected`."""
_RULED: Final = {
    *_EXPECTED,
    "check_include_exclude",
    "check_csv",
    "check_list",
    "check_json",
    "compare_font_names",
    "contains_page_break",
    "check_image_size",
}
"""Functions whose expected value is an object of rules."""


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
    if name in _RULED:
        return _rules_problem(name, rules)
    if name == "compare_table":
        problem = tables.problem_of(options, has_gold=has_gold)
        return None if problem is None else f"compare_table with {problem}"
    if name == "compare_archive" and options.get("file_type", "text") not in pictures.BY_TYPE:
        return f"compare_archive of {options.get('file_type')!r}"
    return None


def _rules_problem(name: str, rules: object) -> str | None:
    if not isinstance(rules, dict):
        return f"{name} without rules"
    fields = cast(dict[str, Any], rules)
    if name in _EXPECTED and "expected" not in fields:
        return f"{name} without 'expected'"
    if name == "compare_font_names" and "font_name" not in fields:
        return f"{name} without 'font_name'"
    if name == "check_json":
        conditions = [*fields.get("expect", ()), *fields.get("unexpect", ())]
        problems = [p for one in conditions if (p := matching.problem_of(one)) is not None]
        return f"check_json with {problems[0]}" if problems else None
    if name == "check_list":
        patterns = [*fields.get("expect", ()), *fields.get("unexpect", ())]
        are_valid = all(matching.compiles(one) for one in patterns)
        return None if are_valid else "check_list with a bad pattern"
    return None


__all__ = ["FUNCTIONS", "Evaluator", "File", "UnreadableError", "problem_of"]
