"""The shortcut for writing one plain observation, if it is proven to equal the template.

Most templates write a text observation as fixed text + the content (perhaps stripped) + fixed text.
To prove that, the template runs once on a traced string. The trace records every question that the
template asks about the string (a prefix, a contained tag, emptiness) with its answer. Any operation
other than asking and writing ends the attempt. An observation with the same answers to all recorded
questions takes the same path through the template, so its text is known without rendering; any
other observation is rendered. Constructs that hide a string from the trace (macros, `~` outside
output, filters that copy) rule a template out beforehand. At the end, contents built from the
template's own constants are compared with real renders.
"""

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from jinja2 import nodes

TRACE: Final = "Tq0rAcE9zX"
_IMAGE_KEYS, _TEXT_KEYS = {"type", "image"}, {"type", "text"}
_TRACKED_FILTERS = frozenset(
    [
        "trim",
        "length",
        "count",
        "string",
        "default",
        "d",
        "items",
        "first",
        "last",
        "list",
        "map",
        "selectattr",
        "rejectattr",
        "select",
        "reject",
        "tojson",
        "upper",
        "lower",
        "reverse",
        "replace",
        "capitalize",
        "sort",
        "unique",
    ]
)
_NASTY = (
    "",
    " ",
    "\n",
    "  \n\n\tedges \u00e9 \u4e16\u754c \U0001f680 \\n \r\n ",
    '<b>&amp;"quotes"\'</b> {{ x }} {% y %} \u2028 \x00 \x1b',
    "0",
    "true",
    "{}",
    '{"a": [1, "\\u00e9"]}',
    "[]",
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a template asked about the content, with the answer on this path."""

    strips: tuple[tuple[str, str | None], ...]
    name: str
    argument: Any
    answer: bool

    def holds(self, content: str) -> bool:
        """Return whether a content gets the same answer."""
        return _ANSWERS[self.name](_strip(content, self.strips), self.argument) is self.answer


@dataclass(frozen=True, slots=True)
class TailShape:
    """Fixed text around one content. `write` returns the tail, or None to render instead."""

    before: str
    strips: tuple[tuple[str, str | None], ...]
    as_json: bool
    after: str
    questions: tuple[Question, ...]

    def write(self, content: str) -> str | None:
        """Return the text from the closer on, or None if the template has to render it."""
        for question in self.questions:
            if not question.holds(content):
                return None
        return self.before + self.body(content) + self.after

    def body(self, content: str) -> str:
        """Return the content as the template writes it."""
        text = _strip(content, self.strips) if self.strips else content
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.as_json else text


def derive_shape(
    syntax_tree: "nodes.Template | None",
    tail_of: Callable[[str], str],
) -> TailShape | None:
    """Find the shape of a template's tail, or None if it cannot be proven.

    Args:
        syntax_tree: The parsed template; for None nothing can be proven.
        tail_of: Renders the tail of an observation with a content; must pass a `Traced` string to
            the template unchanged.
    """
    constants = _constants(syntax_tree)
    if constants is None:
        return None
    trace = Trace()
    try:
        text = tail_of(Traced(TRACE, trace))
    except Exception:  # noqa: BLE001  # the template did something untraceable, so render it
        return None
    before, found, after = str.partition(str(text), TRACE)
    if not found or TRACE in after or trace.failed:
        return None
    questions = tuple(dict.fromkeys(trace.questions))
    # only tojson copies a string untraced, so a content with no traced write went through it
    shape = TailShape(before, trace.strips or (), trace.strips is None, after, questions)
    return shape if _agrees(shape, constants, tail_of) else None


def _agrees(shape: TailShape, constants: Sequence[str], tail_of: Callable[[str], str]) -> bool:
    probes = list(_NASTY)
    for constant in constants:
        probes += [constant, f"x{constant}y", f"{constant} x", f"x {constant}"]
    for probe in probes:
        predicted = shape.write(probe)
        if predicted is None:
            continue
        try:
            if tail_of(probe) != predicted:
                return False
        except Exception:  # noqa: BLE001  # rejected by the template, accepted by the shape
            return False
    return True


# ---- constructs that rule a template out


def _constants(tree: "nodes.Template | None") -> list[str] | None:
    """Return the template's short string constants, or None if it can hide a string."""
    from jinja2 import nodes

    if tree is None:
        return None
    hiding: Any = (
        nodes.Macro,
        nodes.CallBlock,
        nodes.FilterBlock,
        nodes.AssignBlock,
        nodes.Include,
    )
    # These store or pass a rendered string, in which no question about it is recorded.
    if tree.find(hiding) is not None:
        return None
    written: set[int] = set()
    for output in tree.find_all(nodes.Output):
        for node in output.nodes:
            _note_written(node, written)
    if any(_hides(node, written) for node in tree.find_all(nodes.Expr)):
        return None
    found = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return sorted(text for text in found if 0 < len(text) <= 60)


def _note_written(node: Any, written: set[int]) -> None:  # noqa: ANN401  # a jinja2 node
    """Collect the expressions whose text only goes to the output."""
    from jinja2 import nodes

    written.add(id(node))
    if isinstance(node, (nodes.Add, nodes.Concat)):
        for child in node.iter_child_nodes():
            _note_written(child, written)
    elif isinstance(node, nodes.CondExpr):
        for branch in (node.expr1, node.expr2):
            if branch is not None:
                _note_written(branch, written)


def _hides(node: Any, written: set[int]) -> bool:  # noqa: ANN401  # a jinja2 node
    """Return whether an expression can copy or inspect a string without the trace seeing it."""
    from jinja2 import nodes

    if isinstance(node, nodes.Filter):
        return node.name not in _TRACKED_FILTERS and not (
            node.name == "join" and id(node) in written
        )
    # `~` joins in C, outside of the output unseen.
    if isinstance(node, nodes.Concat):
        return id(node) not in written
    # `"%s" % content` formats in C.
    if isinstance(node, nodes.Mod):
        return not (isinstance(node.right, nodes.Const) and isinstance(node.right.value, int))
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
        return isinstance(node.node.node, nodes.Const)  # 'x'.join(content) runs in C
    return False


# ---- the traced string


class UntraceableError(Exception):
    """The template did something untraceable with a content."""


class Trace:
    """The questions that a template asked about one content, and how it wrote it."""

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.strips: tuple[tuple[str, str | None], ...] | None = None
        self.failed = False

    def write(self, strips: tuple[tuple[str, str | None], ...]) -> None:
        """Record that the content was written; every write must have the same form."""
        if self.strips not in (None, strips):
            raise self.fail()
        self.strips = strips

    def fail(self) -> "UntraceableError":
        """Record the failure, since jinja swallows exceptions in some tests; return it to raise."""
        self.failed = True
        return UntraceableError("the template does something untraceable with a content")


def _strip(text: str, strips: Sequence[tuple[str, str | None]]) -> str:
    for name, characters in strips:
        text = _STRIPS[name](text, characters)
    return text


_STRIPS: Final[dict[str, Callable[[str, str | None], str]]] = {
    "strip": str.strip,
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
}
_ANSWERS: Final[dict[str, Callable[[str, Any], bool]]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": operator.contains,
    "equals": operator.eq,
    "true": lambda text, _: bool(text),
}


class Traced(str):  # noqa: PLW1641  # hashing is refused: `_OPERATIONS` below
    """A string that records the questions asked about it and refuses everything else."""

    __slots__ = ("_strips", "_trace", "_written")

    _trace: Trace
    _strips: tuple[tuple[str, str | None], ...]
    _written: bool

    def __new__(
        cls,
        text: str,
        trace: Trace,
        strips: tuple[tuple[str, str | None], ...] = (),
        written: bool = False,
    ) -> "Traced":
        """Create a string; `written` marks text that only goes to the output."""
        made = super().__new__(cls, text)
        made._trace, made._strips, made._written = trace, strips, written
        return made

    def _ask(self, name: str, argument: Any = None) -> bool:  # noqa: ANN401
        if self._written or type(argument) not in (str, tuple, type(None)):
            raise self._trace.fail()
        # The traced word has no characters that a strip would remove, so the answer is that of the
        # path to follow. `holds` asks the same of the real content.
        answer = _ANSWERS[name](str.__str__(self), argument)
        self._trace.questions.append(Question(self._strips, name, argument, answer))
        return answer

    def _cut(self, name: str, characters: str | None) -> "Traced":
        if self._written or (characters is not None and set(characters) & set(TRACE)):
            raise self._trace.fail()
        return Traced(str.__str__(self), self._trace, (*self._strips, (name, characters)))

    def _join(self, left: object, right: object) -> "Traced":
        other = left if right is self else right
        if isinstance(other, Traced) or not isinstance(other, str):
            raise self._trace.fail()
        self._trace.write(self._strips)
        text = str.__str__(left) + str.__str__(right)  # pyright: ignore[reportArgumentType]
        return Traced(text, self._trace, self._strips, written=True)

    def __str__(self) -> str:
        self._trace.write(self._strips)
        return self

    def __add__(self, other: str) -> "Traced":
        return self._join(self, other)

    def __radd__(self, other: str) -> "Traced":
        return self._join(other, self)

    def __contains__(self, part: object) -> bool:
        return self._ask("contains", part)

    def __eq__(self, other: object) -> bool:
        return self._ask("equals", other)

    def __ne__(self, other: object) -> bool:
        return not self._ask("equals", other)

    def __bool__(self) -> bool:
        return self._ask("true")

    def __getitem__(self, key: Any) -> str:  # noqa: ANN401
        if isinstance(key, (int, slice)):
            raise self._trace.fail()
        raise TypeError("string indices must be integers")

    def startswith(self, *arguments: Any) -> bool:  # noqa: ANN401
        """Record the question."""
        return self._ask("startswith", *arguments)

    def endswith(self, *arguments: Any) -> bool:  # noqa: ANN401
        """Record the question."""
        return self._ask("endswith", *arguments)

    def strip(self, characters: str | None = None, /) -> "Traced":
        """Follow the string."""
        return self._cut("strip", characters)

    def lstrip(self, characters: str | None = None, /) -> "Traced":
        """Follow the string."""
        return self._cut("lstrip", characters)

    def rstrip(self, characters: str | None = None, /) -> "Traced":
        """Follow the string."""
        return self._cut("rstrip", characters)


def _refuse(self: Traced, *_arguments: object, **_options: object) -> Any:  # noqa: ANN401
    raise self._trace.fail()  # pyright: ignore[reportPrivateUsage]  # a method, added below


_OPERATIONS: Final = tuple(
    f"__{name}__"
    for name in [
        "iter",
        "len",
        "hash",
        "lt",
        "le",
        "gt",
        "ge",
        "mod",
        "rmod",
        "mul",
        "rmul",
        "format",
    ]
)
for _name in (*(name for name in dir(str) if not name.startswith("_")), *_OPERATIONS):
    if _name not in vars(Traced) or _name == "__hash__":
        setattr(Traced, _name, _refuse)


def text_after_image(content: object) -> str | None:
    """Return the text of a content that is one image and one text; None for any other."""
    if type(content) is not list or len(cast("list[Any]", content)) != 2:
        return None
    first, second = cast("list[dict[str, Any]]", content)
    if first.keys() != _IMAGE_KEYS or second.keys() != _TEXT_KEYS:
        return None
    if first["type"] != "image" or second["type"] != "text" or type(second["text"]) is not str:
        return None
    return second["text"]
