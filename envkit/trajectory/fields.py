"""Typed reading of a JSON object: each getter says which field is missing or of the wrong type."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from envkit.errors import StorageError
from envkit.images import Image
from envkit.trajectory.plain import from_plain

_MAX_INTEGER = 2**63


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of a record."""

    row: Mapping[str, Any]
    where: str
    """Its place in the record; empty for the record itself."""
    image: Callable[[str], Image]

    @classmethod
    def of(cls, value: object, where: str, image: Callable[[str], Image]) -> "Fields":
        """Check that the value is an object.

        Raises:
            StorageError: It is something else.
        """
        if not isinstance(value, dict):
            name = where or "a record"
            raise StorageError(f"{name} must be a JSON object, got {type(value).__name__}")
        return cls(cast("dict[str, Any]", value), where, image)

    def integer(self, name: str) -> int:
        """Return an integer that fits in 64 bits."""
        value = self._get(name)
        if type(value) is not int or abs(value) >= _MAX_INTEGER:
            raise self._wrong(name, "an integer", value)
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return an integer of any size, or None."""
        value = self._get(name)
        if value is not None and type(value) is not int:
            raise self._wrong(name, "an integer or null", value)
        return value

    def number(self, name: str) -> float:
        """Return a number."""
        value = from_plain(self._get(name), self._path(name), self.image)
        if type(value) not in (int, float):
            raise self._wrong(name, "a number", value)
        return value

    def optional_number(self, name: str) -> float | None:
        """Return a number or None."""
        return None if self._get(name) is None else self.number(name)

    def text(self, name: str) -> str:
        """Return a text."""
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a text or None."""
        return None if self._get(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self._list(name)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, "a list of texts", values)
        return tuple(values)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list of integers from 0 to 2^63."""
        values = self._list(name)
        is_whole = not values or set(map(type, values)) == {int}  # quicker than a look at each
        if not is_whole or (values and not 0 <= min(values) <= max(values) < _MAX_INTEGER):
            raise self._wrong(name, "a list of integers of at least 0", values)
        return tuple(values)

    def floats(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers."""
        values = self._list(name)
        if not set(map(type, values)) <= {int, float}:
            values = [from_plain(value, self._path(name), self.image) for value in values]
        if not set(map(type, values)) <= {int, float}:
            raise self._wrong(name, "a list of numbers", values)
        return tuple(values)

    def anything(self, name: str) -> Any:  # noqa: ANN401  # JSON data
        """Return free-form data of any shape."""
        return from_plain(self._get(name), self._path(name), self.image)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return free-form data."""
        value = from_plain(self._get(name), self._path(name), self.image)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return cast("dict[str, Any]", value)

    def counts(self, name: str) -> dict[str, int]:
        """Return integers by name."""
        value = self.mapping(name)
        if not all(type(count) is int for count in value.values()):
            raise self._wrong(name, "an object of integers", value)
        return value

    def all(self) -> dict[str, Any]:
        """Return the object itself as free-form data."""
        return {
            key: from_plain(value, self._path(key), self.image) for key, value in self.row.items()
        }

    def child(self, name: str) -> "Fields":
        """Return an object."""
        return Fields.of(self._get(name), self._path(name), self.image)

    def optional_child(self, name: str) -> "Fields | None":
        """Return an object or None."""
        return None if self._get(name) is None else self.child(name)

    def children(self, name: str) -> tuple["Fields", ...]:
        """Return a list of objects."""
        path = self._path(name)
        return tuple(
            Fields.of(value, f"{path}[{n}]", self.image) for n, value in enumerate(self._list(name))
        )

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _get(self, name: str) -> Any:  # noqa: ANN401  # JSON data
        if name not in self.row:
            raise StorageError(f"{self._path(name)} is missing from the record")
        return self.row[name]

    def _list(self, name: str) -> list[Any]:
        value = self._get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        return cast("list[Any]", value)

    def _wrong(self, name: str, rule: str, value: object) -> StorageError:
        return StorageError(f"{self._path(name)} must be {rule}, got {value!r:.80}")
