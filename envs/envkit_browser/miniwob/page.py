"""The page as the scripted policy reads it: elements, in CSS pixels.

A model never gets this: it sees screenshots. Boxes are in page pixels; `Page.scale` converts them
to screenshot pixels.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from envkit_actions import Action

Point = tuple[float, float]
_SIMPLE: Final = re.compile(r"^([\w*-]+)?((?:[#.][\w-]+)*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element of a page."""

    number: int
    """Position in document order."""
    parent: int | None
    """Number of the parent; None at the top."""
    tag: str
    attributes: Mapping[str, str]
    text: str
    """All text inside, white space folded."""
    box: tuple[float, float, float, float]
    """Left, top, width, height in the window; an element that is not shown has width 0."""
    point: Point | None
    """A point where a press reaches the element; None if it is hidden, covered or off-window."""
    text_ends: tuple[float, float, float, float] | None
    """Start and end of its own text: x, y, x, y; None without text."""
    value: str | None
    """Value of a form field."""
    checked: bool
    """State of a checkbox, radio button or option."""
    focused: bool
    color: str
    background: str
    scrolls: bool
    """Whether the wheel scrolls its content."""
    scroll: tuple[float, float, float]
    """Scroll offset, content height and visible height."""
    selection: tuple[int, int] | None
    """Selection of a text field: first and last position."""

    @property
    def id(self) -> str:
        """The attribute `id`; empty if missing."""
        return self.attributes.get("id", "")

    @property
    def classes(self) -> frozenset[str]:
        """The names of the class attribute."""
        return frozenset(self.attributes.get("class", "").split())

    @property
    def is_shown(self) -> bool:
        """Whether it takes up space, in the window or not."""
        return self.box[2] > 0 and self.box[3] > 0

    @property
    def middle(self) -> Point:
        """The middle of its box."""
        left, top, width, height = self.box
        return left + width / 2, top + height / 2

    def number_of(self, attribute: str) -> float:
        """Return an attribute as a number."""
        return float(self.attributes[attribute])


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page in its current state, with the goal and the actions so far."""

    task: str
    goal: str
    elements: Sequence[Element]
    bar: Sequence[Element] = ()
    """Elements of the yellow bar that shows the goal."""
    selected: str = ""
    """Selected text on the page, outside fields."""
    scale: float = 1.0
    """Screenshot pixels per page pixel."""
    performed: tuple[Action, ...] = ()
    """Actions of the episode so far, in pixels of the screenshot."""
    children: Mapping[int | None, Sequence[int]] = field(
        default_factory=dict[int | None, list[int]]
    )
    """Numbers of an element's children."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any], **known: Any) -> "Page":  # noqa: ANN401  # the fields
        """Build a page from what `envkitPage.read()` of page.js returns."""
        elements, bar = _elements(data["elements"]), _elements(data["bar"])
        children: dict[int | None, list[int]] = {}
        for element in elements:
            children.setdefault(element.parent, []).append(element.number)
        return cls(
            elements=elements, bar=bar, selected=data["selected"], children=children, **known
        )

    def all(self, selector: str, inside: Element | None = None) -> list[Element]:
        """Return the elements of a selector of names, #ids, .classes and spaces, in order."""
        return list(self._matching(selector, inside))

    def first(self, selector: str, inside: Element | None = None) -> Element | None:
        """Return the first such element, or None."""
        return next(self._matching(selector, inside), None)

    def one(self, selector: str, inside: Element | None = None) -> Element:
        """Return the first such element.

        Raises:
            LookupError: There is no such element.
        """
        found = self.first(selector, inside)
        if found is None:
            raise LookupError(f"the page of {self.task!r} must have {selector!r}, got none")
        return found

    def shown(self, selector: str, inside: Element | None = None) -> list[Element]:
        """Return the elements of a selector that take up space."""
        return [element for element in self._matching(selector, inside) if element.is_shown]

    def with_text(self, selector: str, text: str) -> Element:
        """Return the first element of a selector with that text.

        Raises:
            LookupError: There is no such element.
        """
        for element in self._matching(selector, None):
            if element.text == text:
                return element
        raise LookupError(f"the page of {self.task!r} must have {selector!r} {text!r}, got none")

    def parent(self, element: Element) -> Element:
        """Return the parent of an element that is not at the top."""
        assert element.parent is not None
        return self.elements[element.parent]

    def ancestors(self, element: Element) -> Iterator[Element]:
        """Return the elements around one, nearest first."""
        while element.parent is not None:
            element = self.elements[element.parent]
            yield element

    def before(self, element: Element) -> Element:
        """Return the child of the same parent before an element that is not the first."""
        row = self.children[element.parent]
        return self.elements[row[row.index(element.number) - 1]]

    def quoted(self) -> list[str]:
        """Return the texts in double quotes in the goal."""
        return re.findall(r'"(.*?)"', self.goal)

    def asked(self, pattern: str) -> str:
        """Return the first group of a pattern in the goal.

        Raises:
            LookupError: The goal does not match the pattern.
        """
        found = re.search(pattern, self.goal)
        if found is None:
            raise LookupError(f"the goal of {self.task!r} must match {pattern!r}: {self.goal!r}")
        return found.group(1)

    def _matching(self, selector: str, inside: Element | None) -> Iterator[Element]:
        *around, last = selector.split()
        for element in self.elements:
            if not _fits(element, last):
                continue
            ancestors = list(self.ancestors(element))
            if inside is not None and inside not in ancestors:
                continue
            if _all_around(ancestors, around):
                yield element


def _elements(rows: Sequence[Mapping[str, Any]]) -> list[Element]:
    return [
        Element(number=number, **{name: _frozen(value) for name, value in row.items()})
        for number, row in enumerate(rows)
    ]


def _frozen(value: Any) -> Any:  # noqa: ANN401  # any JSON
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _all_around(ancestors: Sequence[Element], around: Sequence[str]) -> bool:
    """Return whether the ancestors, nearest first, hold the parts of a selector in that order."""
    wanted = list(around)
    for ancestor in ancestors:
        if wanted and _fits(ancestor, wanted[-1]):
            wanted.pop()
    return not wanted


def _fits(element: Element, simple: str) -> bool:
    parts = _SIMPLE.match(simple)
    if parts is None:
        raise ValueError(f"a selector must be made of names, #ids and .classes, got {simple!r}")
    tag, rest = parts.group(1), parts.group(2)
    if tag not in (None, "*", element.tag):
        return False
    marks = re.findall(r"[#.][\w-]+", rest)
    return all(
        mark[1:] == element.id if mark[0] == "#" else mark[1:] in element.classes for mark in marks
    )
