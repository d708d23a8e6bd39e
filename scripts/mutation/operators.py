"""Mutation operators and the mutants of a source file.

cosmic-ray provides the operators for comparisons, numbers and booleans and applies them to source
text. Two more follow its protocol: a dropped statement, and two swapped arguments. Messages,
annotations, decorators and imports are never mutated.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.operators import boolean_replacer, number_replacer
from cosmic_ray.operators import comparison_operator_replacement as comparisons
from cosmic_ray.operators import unary_operator_replacement as unary
from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Name
from parso.python.tree import Operator as Token

Node = Any
"""A node of parso's tree, which has no types."""

_BOUNDARIES: Final = (
    ("Lt", "LtE"), ("Lt", "GtE"), ("LtE", "Lt"), ("LtE", "Gt"),
    ("Gt", "GtE"), ("Gt", "LtE"), ("GtE", "Gt"), ("GtE", "Lt"),
    ("Eq", "NotEq"), ("NotEq", "Eq"), ("Is", "IsNot"), ("IsNot", "Is"),
)  # fmt: skip
"""The nearest other bound and the opposite."""

_DROPPED: Final = frozenset(
    {
        "expr_stmt", "atom_expr", "await_expr", "return_stmt", "raise_stmt", "assert_stmt",
        "del_stmt", "yield_expr", "keyword",
    }
)  # fmt: skip
"""Types of small statements; "keyword" covers `break`, `continue` and a bare `return`."""

_SYMMETRIC: Final = frozenset({"min", "max", "isclose", "array_equal", "suppress"})
"""Functions whose positional arguments have no order."""
_SCOPES: Final = ("funcdef", "classdef")
_MESSAGES: Final = frozenset({"raise_stmt", "assert_stmt", "fstring", "string"})
_UNTOUCHED: Final = frozenset({"decorator", "decorators", "import_name", "import_from", "tfpdef"})


class SwapMembership(Operator):
    """Replace `in` with `not in`, and the reverse."""

    def mutation_positions(self, node: Node) -> Iterator[tuple[Any, Any]]:
        """Yield the position of each membership operator of a comparison."""
        for index in self._places(node):
            yield node.children[index].start_pos, node.children[index].end_pos

    def mutate(self, node: Node, index: int) -> Node:
        """Replace one operator."""
        place = list(self._places(node))[index]
        was = node.children[place].get_code().split()
        node.children[place] = parso.parse(" in" if was == ["not", "in"] else " not in")
        return node

    @staticmethod
    def _places(node: Node) -> Iterator[int]:
        if node.type == "comparison":
            for place in range(1, len(node.children), 2):
                if node.children[place].get_code().split() in (["in"], ["not", "in"]):
                    yield place

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Show the mutation."""
        return (Example("x in y", "x not in y"),)


class DropStatement(Operator):
    """Replace a small statement inside a function with `pass`."""

    def mutation_positions(self, node: Node) -> Iterator[tuple[Any, Any]]:
        """Yield the position of a statement that can be dropped."""
        if node.type == "simple_stmt" and self._is_dropped(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Node, index: int) -> Node:
        """Replace the statement; the lines after it keep their numbers."""
        statement = node.children[0]
        lines = statement.end_pos[0] - statement.start_pos[0]
        prefix = statement.get_first_leaf().prefix
        node.children[0] = Name("pass" + "\n" * lines, statement.start_pos, prefix=prefix)
        return node

    @staticmethod
    def _is_dropped(statement: Node) -> bool:
        scope = next((one for one in _ancestors(statement) if one.type in _SCOPES), None)
        if statement.type not in _DROPPED or scope is None or scope.type == "classdef":
            return False
        if statement.type == "keyword":
            return statement.value in ("break", "continue", "return")
        if statement.get_code(include_prefix=False) == "return None" and _ends_function(statement):
            return False  # as a function does without it
        return not (
            statement.type == "expr_stmt"
            and len(statement.children) == 2
            and statement.children[1].type == "annassign"
            and len(statement.children[1].children) == 2
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Show the mutation."""
        return (Example("def f():\n    g()", "def f():\n    pass"),)


class SwapArguments(Operator):
    """Swap two neighbouring positional arguments of a call."""

    def mutation_positions(self, node: Node) -> Iterator[tuple[Any, Any]]:
        """Yield the position of each pair."""
        for first, second in self._pairs(node):
            yield node.children[first].start_pos, node.children[second].end_pos

    def mutate(self, node: Node, index: int) -> Node:
        """Swap one pair; the white space stays where it is."""
        first, second = list(self._pairs(node))[index]
        one, other = node.children[first], node.children[second]
        node.children[first], node.children[second] = _moved(other, one), _moved(one, other)
        return node

    @staticmethod
    def _pairs(node: Node) -> Iterator[tuple[int, int]]:
        if node.type != "arglist" or node.parent.type != "trailer":
            return
        if node.parent.get_previous_sibling().get_last_leaf().value in _SYMMETRIC:
            return
        places = [at for at, child in enumerate(node.children) if not isinstance(child, Token)]
        for first, second in pairwise(places):
            pair = (node.children[first], node.children[second])
            if not any(child.type == "argument" for child in pair):  # keywords and stars
                yield first, second

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Show the mutation."""
        return (Example("f(a, b)", "f(b, a)"),)


def _moved(node: Node, place: Node) -> Node:
    """Return the code of a node with the white space before another one."""
    code = node.get_code(include_prefix=False)
    return Name(code, place.start_pos, prefix=place.get_first_leaf().prefix)


def _operators() -> dict[str, Operator]:
    named: dict[str, Operator] = {
        f"{was}-{now}": getattr(comparisons, f"ReplaceComparisonOperator_{was}_{now}")()
        for was, now in _BOUNDARIES
    }
    return {
        **named,
        "membership": SwapMembership(),
        "number": number_replacer.NumberReplacer(),
        "and-or": boolean_replacer.ReplaceAndWithOr(),
        "or-and": boolean_replacer.ReplaceOrWithAnd(),
        "true-false": boolean_replacer.ReplaceTrueWithFalse(),
        "false-true": boolean_replacer.ReplaceFalseWithTrue(),
        "add-not": boolean_replacer.AddNot(),
        "delete-not": unary.ReplaceUnaryOperator_Delete_Not(),
        "drop": DropStatement(),
        "swap": SwapArguments(),
    }


WEAK: Final = frozenset({"drop", "swap"})
"""Operators of which at least 90% have to be killed; all mutants of the others have to be."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one file. Its key does not depend on line numbers."""

    path: str
    """The file, relative to the repository."""
    where: str
    """Qualified name of the enclosing function or class; empty for a module's own lines."""
    operator: str
    was: str
    """Lines that change, joined and stripped."""
    becomes: str
    number: int
    """Counts the mutants of the same file that agree in all of this."""
    lines: tuple[int, int]
    """First and last line of the statement, counted from 1."""
    source: str
    """The mutated file."""

    @property
    def key(self) -> str:
        """Identify the mutant in caches and lists."""
        again = f" #{self.number}" if self.number else ""
        return f"{self.path}::{self.where} [{self.operator}] {self.was} => {self.becomes}{again}"

    @property
    def is_weak(self) -> bool:
        """Whether some mutants of its operator may survive."""
        return self.operator in WEAK


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """Return all mutants of a file that compile, in the order of its lines."""
    source = (root / path).read_text(encoding="utf-8")
    found = [
        mutant
        for name, operator in _operators().items()
        for mutant in _applied(path, source, name, operator)
    ]
    seen: Counter[str] = Counter()
    numbered: list[Mutant] = []
    for mutant in sorted(found, key=lambda one: one.lines):
        numbered.append(Mutant(**{**vars(mutant), "number": seen[mutant.key]}))
        seen[mutant.key] += 1
    return numbered


def _applied(path: str, source: str, name: str, operator: Operator) -> Iterator[Mutant]:
    for node in ast_nodes(get_ast(source)):
        positions = list(operator.mutation_positions(node))
        if not positions or _is_excluded(node, name):
            continue
        if name == "add-not" and _is_negated_elsewhere(node):
            continue
        for index in range(len(positions)):
            mutated = _mutated(source, node, operator, index)
            if mutated == source or not _compiles(mutated):
                continue
            was, becomes = _changed_lines(source, mutated)
            yield Mutant(
                path=path,
                where=_definition(node),
                operator=name,
                was=was,
                becomes=becomes,
                number=0,
                lines=_statement_lines(node),
                source=mutated,
            )


def _mutated(source: str, node: Node, operator: Operator, index: int) -> str:
    """Return the source with one mutation, and leave the tree as it was.

    `cosmic_ray.mutating.mutate_code` parses the file for each mutation: a minute for 500 lines.
    """
    kept = {name: getattr(node, name) for name in ("children", "value") if hasattr(node, name)}
    if "children" in kept:
        node.children = list(kept["children"])
    starts = _line_starts(source)
    start = _offset(starts, node.get_start_pos_of_prefix())
    end = _offset(starts, node.end_pos)
    code = operator.mutate(node, index).get_code()
    for name, value in kept.items():
        setattr(node, name, value)
    return source[:start] + code + source[end:]


def _line_starts(source: str) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _offset(starts: list[int], position: tuple[int, int]) -> int:
    return starts[position[0] - 1] + position[1]


def _ancestors(node: Node) -> Iterator[Node]:
    while node is not None:
        yield node
        node = node.parent


def _is_negated_elsewhere(node: Node) -> bool:
    """Whether another operator already makes the opposite of a condition."""
    condition = node.children[2 if node.type == "test" else 1]
    return condition.type == "not_test" or (
        condition.type == "comparison" and len(condition.children) == 3
    )


def _ends_function(statement: Node) -> bool:
    line = statement.parent
    suite = line.parent
    return suite.parent.type == "funcdef" and suite.children[-1] is line


def _is_excluded(node: Node, operator: str) -> bool:
    for one in _ancestors(node):
        if one.type in _UNTOUCHED or (one.type in _MESSAGES and one is not node):
            # A raise or an assertion may be dropped; what stands inside is a message.
            return not (operator == "drop" and one.type in ("raise_stmt", "assert_stmt"))
        if one.type == "if_stmt" and one.children[1].get_code().strip() == "TYPE_CHECKING":
            return True
        if _is_annotation(one):
            return True
    return False


def _is_annotation(node: Node) -> bool:
    """Whether the node is the annotation of a variable or of a return value."""
    parent = node.parent
    if parent is None:
        return False
    if parent.type == "annassign":
        return parent.children[1] is node
    return parent.type == "funcdef" and parent.annotation is node


def _definition(node: Node) -> str:
    names = [one.name.value for one in _ancestors(node) if one.type in _SCOPES and one is not node]
    return ".".join(reversed(names))


def _statement_lines(node: Node) -> tuple[int, int]:
    """Return the lines of the small statement or of the header that holds the node."""
    child = node
    for one in _ancestors(node):
        if one.type == "simple_stmt":
            return one.start_pos[0], one.children[0].end_pos[0]
        if one.type in ("if_stmt", "while_stmt", "for_stmt", "with_stmt", "funcdef", "try_stmt"):
            return child.start_pos[0], child.end_pos[0]
        child = one
    return node.start_pos[0], node.end_pos[0]


def _changed_lines(source: str, mutated: str) -> tuple[str, str]:
    before, after = source.splitlines(), mutated.splitlines()
    same = [old == new for old, new in zip(before, after, strict=False)]
    first = same.index(False)
    # A number that has a line of its own loses it, so the lines are compared from the end too.
    ends = [old == new for old, new in zip(before[:first:-1], after[:first:-1], strict=False)]
    kept = ends.index(False) if False in ends else len(ends)
    return _joined(before[first : len(before) - kept]), _joined(after[first : len(after) - kept])


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
