"""Match one value against a rule `{"method": ..., "ref": ...}` of a task file."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from openpyxl.worksheet.cell_range import MultiCellRange

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")
}
_FLAGS: Final = {"I": re.I, "IGNORECASE": re.I, "M": re.M, "MULTILINE": re.M, "S": re.S}
_RANGE: Final = re.compile(r"range\.([te])([te])")


def problem_of(rule: object) -> str | None:
    """Return why a rule cannot be used, or None if it can."""
    if not isinstance(rule, dict) or not {"method", "ref"} <= cast(dict[str, Any], rule).keys():
        return "a rule without method and ref"
    fields = cast(dict[str, Any], rule)
    name, ref = str(fields["method"]), fields["ref"]
    base, _, rest = name.partition(".")
    if base == "re":
        flags = all(flag in _FLAGS for flag in rest.split(".") if flag)
        return None if flags and isinstance(ref, str) and compiles(ref) else "an invalid pattern"
    if name.startswith("approx:"):
        return None if _number(name[7:]) is not None and _number(ref) is not None else name
    if name in (*_COMPARISONS, "spreadsheet_range", "str_list_eq", "str_set_eq"):
        return None
    return None if _RANGE.fullmatch(name) else f"the method {name!r}"


def matches(value: Any, rule: Mapping[str, Any]) -> bool:  # noqa: ANN401  # any value of a document
    """Return whether a value fulfils a rule; one that cannot be compared does not."""
    name, ref = str(rule["method"]), rule["ref"]
    try:
        if name == "re" or name.startswith("re."):
            flags = re.RegexFlag(0)
            for flag in filter(None, name.split(".")[1:]):
                flags |= _FLAGS[flag]
            return re.search(ref, "" if value is None else str(value), flags) is not None
        if name in _COMPARISONS:
            return bool(_COMPARISONS[name](value, ref))
        if name.startswith("approx:"):
            number = _number(value)
            return number is not None and abs(number - float(ref)) <= float(name[7:])
        if name in ("str_list_eq", "str_set_eq"):
            make = set if "set" in name else list
            return make(str(value).strip("\"'").split(",")) == make(ref)
        if name == "spreadsheet_range":
            least, most = (MultiCellRange(limit) for limit in ref)
            return all(part in value for part in least) and all(part in most for part in value)
        return _within(name, ref, value)
    except (TypeError, ValueError):
        return False


def _within(name: str, ref: Any, value: Any) -> bool:  # noqa: ANN401
    low, high = name[6], name[7]
    left = _COMPARISONS[f"l{low}"](ref[0], value)
    return left and _COMPARISONS[f"l{high}"](value, ref[1])


def _number(value: Any) -> float | None:  # noqa: ANN401
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def compiles(pattern: str) -> bool:
    """Return whether a text is a regular expression."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
