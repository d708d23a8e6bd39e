"""Compare texts, JSON, lists and CSV files."""

import csv
import difflib
import io
import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from envkit_linux_desktop.osworld.evaluators import values
from envkit_linux_desktop.osworld.evaluators.matching import matches

_TIME: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)")


def check_include_exclude(result: Any, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check that a text contains some texts and lacks others."""
    if result is None:
        return 0.0
    text = values.as_text(result)
    included = all(part in text for part in rules.get("include", ()))
    return float(included and not any(part in text for part in rules.get("exclude", ())))


def exact_match(result: Any, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check that a value is the expected one."""
    return float(result == rules["expected"])


def match_in_list(result: Any, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check that a value is one of the expected ones."""
    return float(result in rules["expected"])


def is_in_list(result: Any, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check that a list or text contains the expected value."""
    return float(result is not None and rules["expected"] in result)


def literal_match(result: Any, expected: Any, options: values.Options) -> float:  # noqa: ANN401
    """Compare two values, or two lists, as texts."""
    one, two = ([value] if options.get("type") != "list" else value for value in (result, expected))
    if not (isinstance(one, list) and isinstance(two, list)):
        return 0.0
    left, right = ([str(value) for value in cast(list[object], side)] for side in (one, two))
    if options.get("ignore_case"):
        left, right = [text.lower() for text in left], [text.lower() for text in right]
    return float(left == right)


def fuzzy_match(result: Any, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Return how similar a text is to the expected one."""
    return (
        0.0 if result is None else values.similarity(values.as_text(result), str(rules["expected"]))
    )


@values.of_file
def compare_text_file(result: values.File, expected: Any, options: values.Options) -> float:  # noqa: ANN401
    """Compare two text files."""
    one, two = values.text_of(result), values.as_text(expected)
    if options.get("ignore_blanks"):
        one, two = (re.sub(r"\s+", " ", text).strip() for text in (one, two))
    if options.get("ignore_case"):
        one, two = one.lower(), two.lower()
    return float(one == two)


@values.of_file
def diff_text_file(result: values.File, expected: Any, _: values.Options) -> float:  # noqa: ANN401
    """Return how similar two text files are, line by line."""
    one, two = values.text_of(result).splitlines(), values.as_text(expected).splitlines()
    return difflib.SequenceMatcher(a=one, b=two).ratio()


@values.of_file
def compare_csv(result: values.File, expected: Any, options: values.Options) -> float:  # noqa: ANN401
    """Compare the lines of a CSV file with those of one or several expected files."""
    golds = cast(list[object], expected) if isinstance(expected, list) else [expected]
    own = _lines(result, options)
    return float(any(own == _lines(gold, options) for gold in golds))


def _lines(value: object, options: values.Options) -> list[str]:
    lines = values.as_text(value).splitlines()
    if not options.get("strict", True):
        lines = [line.strip() for line in lines]
    return [line.lower() for line in lines] if options.get("ignore_case") else lines


@values.of_file
def check_csv(result: values.File, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check that a CSV file has some records and lacks others."""
    records = list(csv.DictReader(io.StringIO(values.text_of(result))))

    def has(pattern: dict[str, str]) -> bool:
        return any(pattern.items() <= record.items() for record in records)

    included = all(has(pattern) for pattern in rules.get("expect", ()))
    return float(included and not any(has(pattern) for pattern in rules.get("unexpect", ())))


def check_list(result: Any, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check that some patterns match a line, and others match none."""
    if result is None:
        return 0.0
    lines = values.as_text(result).splitlines()

    def found(pattern: str) -> bool:
        return any(re.search(pattern, line) for line in lines)

    included = all(found(pattern) for pattern in rules.get("expect", ()))
    return float(included and not any(found(pattern) for pattern in rules.get("unexpect", ())))


@values.of_file
def file_contains(result: values.File, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check that a file contains texts."""
    return float(all(part in values.text_of(result) for part in rules["expected"]))


@values.of_file
def check_line_number(result: values.File, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check how many lines of a report hold a time of day."""
    timed = [line for line in values.text_of(result).splitlines() if _TIME.search(line)]
    return float(str(len(timed)) == str(rules["expected"]))


@values.of_file
def check_json(result: values.File, rules: Any, options: values.Options) -> float:  # noqa: ANN401
    """Check values in a JSON or YAML file by their keys."""
    document = _load(values.text_of(result), is_yaml=bool(options.get("is_yaml")))
    if document is None:
        return 0.0
    wanted = all(_holds(document, rule, missing=False) for rule in rules.get("expect", ()))
    # A value that is not there counts as null for the rules that must not hold.
    unwanted = any(_holds(document, rule, missing=True) for rule in rules.get("unexpect", ()))
    return float(wanted and not unwanted)


def _load(text: str, *, is_yaml: bool) -> Any:  # noqa: ANN401  # a document's own data
    try:
        if is_yaml:
            import yaml

            return yaml.safe_load(text)
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
    except Exception as error:
        if type(error).__module__.startswith("yaml."):
            return None
        raise


def _holds(document: Any, rule: Mapping[str, Any], *, missing: bool) -> bool:  # noqa: ANN401
    value = document
    for key in rule["key"]:
        try:
            value = value[key]
        except (KeyError, TypeError, IndexError):
            return missing and matches(None, rule)
    return matches(value, rule)


def check_direct_json_object(result: Any, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Compare the fields of a JSON object with expected ones."""
    document = result
    if isinstance(result, str | values.File):
        document = _load(values.as_text(result).strip().replace("'", '"'), is_yaml=False)
    if not isinstance(document, dict):
        return 0.0
    own, wanted = cast(dict[str, Any], document), cast(dict[str, Any], rules["expected"])
    if rules.get("expect_in_result"):
        return float(all(_is_within(value, own.get(key)) for key, value in wanted.items()))
    ordered = not rules.get("ignore_list_order", wanted.get("ignore_list_order", False))
    fields = [key for key in wanted if key != "ignore_list_order"]
    return float(all(_same(own.get(key), wanted[key], ordered=ordered) for key in fields))


def _same(one: Any, two: Any, *, ordered: bool) -> bool:  # noqa: ANN401
    if not ordered and isinstance(one, list) and isinstance(two, list):
        left, right = (sorted(map(str, cast(list[object], side))) for side in (one, two))
        return left == right
    return one == two


def _is_within(wanted: Any, own: Any) -> bool:  # noqa: ANN401
    if isinstance(wanted, list):
        choices = cast(list[object], wanted)
        return any(one in own if isinstance(own, list) else one == own for one in choices)
    return isinstance(wanted, str) and isinstance(own, str | list) and wanted in own


def check_moved_jpgs(result: Any, rules: Any, _: values.Options) -> float:  # noqa: ANN401
    """Check the names in a folder."""
    if not isinstance(result, dict):
        return 0.0
    tree = cast(dict[str, Any], result)
    return float(sorted(one["name"] for one in tree["children"]) == sorted(rules["expected"]))
