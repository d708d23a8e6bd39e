"""Join the tensors of single images into the tensors of a conversation.

Most processors concatenate the tensors of all images along the first axis. Some pad first, because
their images differ in size; some join along another axis. Each tensor gets the first of a few rules
that reproduces the processor's own output for several images of different sizes in one call. A
tensor may be missing for some images (Step-3.7 cuts only large ones into tiles).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envkit.errors import TemplateError

_PADDINGS: Final = (0, 1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRule:
    """How the arrays of one key are joined."""

    axis: int = 0
    padding: int | None = None
    """Value that pads the other axes to the largest image; None requires equal sizes."""

    def join(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the joined array.

        Raises:
            ValueError: The rule cannot join arrays of these shapes.
        """
        if self.padding is not None:
            parts = self._padded(parts, self.padding)
        return np.concatenate(parts, axis=self.axis)

    def _padded(self, parts: Sequence[NDArray[Any]], fill: int) -> list[NDArray[Any]]:
        largest = np.max([part.shape for part in parts], axis=0)
        padded: list[NDArray[Any]] = []
        for part in parts:
            missing = [(0, int(size)) for size in largest - part.shape]
            missing[self.axis] = (0, 0)
            padded.append(np.pad(part, missing, constant_values=fill))
        return padded

    def __str__(self) -> str:
        where = f"axis {self.axis}"
        return where if self.padding is None else f"{where}, padded with {self.padding}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """How one model's processor joins images."""

    family: str = "the image processor"
    """The processor's class, for errors."""
    rules: Mapping[str, JoinRule] = field(default_factory=dict[str, JoinRule])
    """Rule of each tensor; a tensor without a rule is concatenated along its first axis."""

    def join(self, images: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """Return the joined tensors of several images, as new arrays.

        Raises:
            TemplateError: The rules cannot join these images.
        """
        columns: dict[str, list[NDArray[Any]]] = {}
        for tensors in images:
            for key, value in tensors.items():
                columns.setdefault(key, []).append(value)
        return {key: self._join(key, parts) for key, parts in columns.items()}

    @property
    def is_plain(self) -> bool:
        """Whether every tensor is concatenated along its first axis."""
        return all(rule == JoinRule() for rule in self.rules.values())

    def to_json(self) -> str:
        """Return the rules as text, for `from_json`."""
        rules = {key: (rule.axis, rule.padding) for key, rule in self.rules.items()}
        return json.dumps({"family": self.family, "rules": rules})

    @classmethod
    def from_json(cls, text: str) -> "Joining":
        """Return the rules that `to_json` wrote."""
        stored = json.loads(text)
        rules = {key: JoinRule(axis=a, padding=fill) for key, (a, fill) in stored["rules"].items()}
        return cls(family=stored["family"], rules=rules)

    def _join(self, key: str, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        rule = self.rules.get(key, JoinRule())
        try:
            return rule.join(parts)
        except ValueError as error:
            shapes = [part.shape for part in parts]
            raise TemplateError(
                f"{self.family} joins {key!r} along {rule}, which needs matching shapes, got "
                f"{shapes}; resize the images to one size"
            ) from error


CONCATENATION: Final = Joining()


def find_joining(
    family: str, images: Sequence[Mapping[str, NDArray[Any]]], batch: Mapping[str, NDArray[Any]]
) -> Joining:
    """Return the rules that join single images into the processor's own batch.

    Args:
        family: The processor's class, for errors.
        images: Its output for each image alone.
        batch: Its output for all images in one call.

    Raises:
        TemplateError: No rule reproduces the batch.
    """
    rules: dict[str, JoinRule] = {}
    for key in dict.fromkeys(key for tensors in (batch, *images) for key in tensors):
        parts = [tensors[key] for tensors in images if key in tensors]
        expected = batch.get(key)
        rule = None if expected is None or not parts else _find(parts, expected)
        if rule is None:
            raise TemplateError(
                f"{family} is not supported: no known rule joins its {key!r} of single images into "
                "that of several, got shape "
                f"{None if expected is None else expected.shape} from "
                f"{[part.shape for part in parts]}"
            )
        rules[key] = rule
    return Joining(family=family, rules=rules)


def _find(parts: Sequence[NDArray[Any]], expected: NDArray[Any]) -> JoinRule | None:
    return next(
        (rule for rule in _candidates(expected.ndim) if _gives(rule, parts, expected)), None
    )


def _candidates(axes: int) -> Iterable[JoinRule]:
    yield from (JoinRule(axis=axis) for axis in range(axes))
    yield from (JoinRule(axis=axis, padding=fill) for axis in range(axes) for fill in _PADDINGS)


def _gives(rule: JoinRule, parts: Sequence[NDArray[Any]], expected: NDArray[Any]) -> bool:
    try:
        joined = rule.join(parts)
    except ValueError:
        return False
    return joined.dtype == expected.dtype and np.array_equal(joined, expected)
