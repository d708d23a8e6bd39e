"""Integers of JSON data that are written as 3.0.

JSON has one kind of number, so a JSON schema takes 3.0 as an integer. A Python function does not.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

_UNIONS: Final = 4
"""Unions inside each other that are followed; each may double the work."""


@dataclass(frozen=True, slots=True)
class JsonIntegers:
    """Reads data by a schema: 3.0 is 3 where the schema takes an integer and no other number."""

    root: Mapping[str, Any]
    """The whole schema, which references point into."""
    is_valid: Callable[[Any, Any], bool]
    """Returns whether a schema takes a value."""

    def read(self, value: Any, schema: Any, unions: int = _UNIONS) -> Any:  # noqa: ANN401  # any JSON
        """Return the value; a part that the schema does not decide stays as it is.

        Args:
            value: JSON data.
            schema: The root or a part of it.
            unions: How many unions inside each other are followed.
        """
        if not isinstance(schema, Mapping) or not has_whole_number(value):
            return value
        rules = cast("Mapping[str, Any]", schema)
        if isinstance(value, float):
            value = int(value) if _takes_integers(rules, value) else value
        elif isinstance(value, dict):
            entries = cast("dict[str, Any]", value).items()
            value = {n: self.read(one, _field(rules, n), unions) for n, one in entries}
        else:
            first, rest = rules.get("prefixItems", ()), rules.get("items")
            rows = enumerate(cast("list[Any]", value))
            value = [
                self.read(one, first[n] if n < len(first) else rest, unions) for n, one in rows
            ]
        for part in (*rules.get("allOf", ()), self._referred(rules)):
            value = self.read(value, part, unions)
        for options in (rules.get("anyOf"), rules.get("oneOf")):
            if options and unions:
                fit = [one for one in options if self.is_valid(one, value)]
                read = [self.read(value, one, unions - 1) for one in fit]
                if read and all(repr(one) == repr(read[0]) for one in read):
                    value = read[0]
        return value

    def _referred(self, rules: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON
        place: Any = rules.get("$ref")
        if not isinstance(place, str) or not place.startswith("#"):
            return None
        found: Any = self.root
        for step in place[1:].split("/")[1:]:
            found = found[step.replace("~1", "/").replace("~0", "~")]
        return found


def has_whole_number(value: Any) -> bool:  # noqa: ANN401  # any JSON
    """Return whether a float without a fraction is in the data."""
    if isinstance(value, dict):
        return any(map(has_whole_number, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(has_whole_number, cast("list[Any]", value)))
    return isinstance(value, float) and value.is_integer()


def _takes_integers(rules: Mapping[str, Any], value: float) -> bool:
    kinds = rules.get("type")
    if kinds is not None:
        return "integer" in kinds and "number" not in kinds
    equal = [one for one in (*rules.get("enum", ()), rules.get("const")) if one == value]
    return bool(equal) and all(type(one) is int for one in equal)


def _field(rules: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401  # any JSON
    """Return the schema of an object's field; None if there is none."""
    named = rules.get("properties", {})
    if name in named:
        return named[name]
    patterns = rules.get("patternProperties", {}).items()
    rest = rules.get("additionalProperties")
    return next((rule for pattern, rule in patterns if re.search(pattern, name)), rest)
