"""Show gradients beside the reference formula, and trainers beside each other."""

from collections import Counter
from collections.abc import Sequence

from fakes.gradients.stored import Pair, Stored, pairs
from fakes.gradients.suite import Comparison, Verdict

from envkit.cli.console import say, table


def show(found: Sequence[Comparison]) -> None:
    """Write a table of all gradients, the reasons of known differences, and what failed."""
    columns = list(dict.fromkeys((one.path, one.shape.value) for one in found))
    cells = {(one.key, one.path, one.shape.value): _cell(one) for one in found}
    keys = dict.fromkeys(one.key for one in found)
    table(
        ("episodes | loss", *(f"{path} {shape}" for path, shape in columns)),
        [(key, *(cells.get((key, *column), "-") for column in columns)) for key in keys],
    )
    _explain(found)
    for one in found:
        if one.verdict is Verdict.FAIL:
            say(str(one))
    counts = Counter(one.verdict for one in found)
    say(f"{len(found)} gradients: " + ", ".join(f"{n} {v.value}" for v, n in counts.items()))


def show_across(stored: Sequence[Stored]) -> None:
    """Write a table that compares every two paths."""
    found = pairs(stored)
    names = sorted({one for one, _ in found})
    table(
        ("1 - cosine, norm error", *names),
        [
            (one, *("-" if one == other else _pair(found[one, other]) for other in names))
            for one in names
        ],
    )
    _explain(stored)


def _pair(pair: Pair) -> str:
    return f"{1 - pair.cosine:.0e}, {pair.norm_error:.0e} ({pair.cases})"


def _explain(found: Sequence[Comparison | Stored]) -> None:
    """Write each reason once, with its gradients."""
    reasons = Counter(
        (one.path, one.message)
        for one in found
        if one.verdict in (Verdict.EXPLAINED, Verdict.REFUSED, Verdict.NOT_INSTALLED)
    )
    for (path, message), count in reasons.items():
        say(f"{path}, {count} of its gradients: {message}")


def _cell(one: Comparison) -> str:
    if one.norm_ratio is None or one.verdict is Verdict.EQUAL:
        return one.verdict.value
    word = "FAIL" if one.verdict is Verdict.FAIL else one.verdict.value
    return f"{word} {one.norm_ratio:.4f}"
