"""Compare gradients of trainers' losses with the reference formula and each other."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from envkit.cli.console import note, say, say_json, table

if TYPE_CHECKING:
    from envkit_conformance.gradient import Comparison, Pair, Stored


def check_gradients(names: Sequence[str], *, save: Path | None, as_json: bool) -> None:
    """Compare the gradients of the installed adapters and show the result."""
    from envkit_conformance import load_members
    from envkit_conformance.gradient import GradientPath, Verdict, compare_paths, save_gradients
    from envkit_conformance.registry import GRADIENT_GROUP

    adapters = load_members(GRADIENT_GROUP, GradientPath, names)
    missing = {one.name: one.missing for one in adapters if one.missing is not None}
    found: list[Comparison] = []
    for adapter in adapters:
        for path in adapter.members:
            note(f"{path.name}: computing gradients")
            comparisons = list(compare_paths([path]))
            for one in comparisons:
                if one.verdict is Verdict.NOT_INSTALLED:
                    missing.setdefault(path.name, one.message)
            found += [one for one in comparisons if one.verdict is not Verdict.NOT_INSTALLED]
            if save is not None and path.name not in missing:
                note(f"{path.name}: saved to {save_gradients(comparisons, save, path.name)}")
    if as_json:
        say_json({"comparisons": [_as_json(one) for one in found], "not_installed": missing})
    else:
        _show(found, missing)
    if any(one.verdict is Verdict.FAIL for one in found) or (names and missing):
        raise typer.Exit(1)


def show_across(directory: Path, *, as_json: bool) -> None:
    """Compare every two paths in a folder and show the result."""
    from envkit_conformance.gradient import load_gradients, pairs

    stored = load_gradients(directory)
    found = pairs(stored)
    if as_json:
        say_json(
            {
                f"{one} {other}": {
                    "cases": pair.cases,
                    "cosine": pair.cosine,
                    "norm_error": pair.norm_error,
                }
                for (one, other), pair in found.items()
            }
        )
        return
    names = sorted({one for one, _ in found})
    table(
        ("1 - cosine, norm error", *names),
        [
            (one, *("-" if one == other else _pair(found[one, other]) for other in names))
            for one in names
        ],
    )
    _explain(stored)


def _pair(pair: "Pair") -> str:
    return f"{1 - pair.cosine:.0e}, {pair.norm_error:.0e} ({pair.cases})"


def _show(found: "Sequence[Comparison]", missing: dict[str, str]) -> None:
    from envkit_conformance.gradient import Verdict

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
    for name, reason in missing.items():
        say(f"{name}: not installed ({reason})")
    counts = Counter(one.verdict for one in found)
    say(f"{len(found)} gradients: " + ", ".join(f"{n} {v.value}" for v, n in counts.items()))


def _explain(found: "Sequence[Comparison | Stored]") -> None:
    """Write each reason once, with its gradients."""
    reasons: dict[tuple[str, str], int] = {}
    for one in found:
        if one.verdict in ("explained", "refused"):
            reasons[one.path, one.message] = reasons.get((one.path, one.message), 0) + 1
    for (path, message), count in reasons.items():
        say(f"{path}, {count} of its gradients: {message}")


def _cell(one: "Comparison") -> str:
    from envkit_conformance.gradient import Verdict

    if one.norm_ratio is None or one.verdict is Verdict.EQUAL:
        return one.verdict.value
    word = "FAIL" if one.verdict is Verdict.FAIL else one.verdict.value
    return f"{word} {one.norm_ratio:.4f}"


def _as_json(one: "Comparison") -> dict[str, object]:
    return {
        "path": one.path,
        "shape": one.shape.value,
        "episodes": one.episodes,
        "case": one.case.name,
        "verdict": one.verdict.value,
        "cosine": one.cosine,
        "norm_ratio": one.norm_ratio,
        "message": one.message,
    }
