"""Measure the layout: import chains, parameters, single importers, long files, plugins in the core.

    python scripts/house.py [--root CHECKOUT] [--list]

- An import chain goes through imports that run when a module is imported. Modules that import each
  other count as one link.
- Parameters leave out `self` and `cls`. `KEYWORDS` lists the public functions that may have many.
- A module with one importer is not a package's `__init__`.
- A long file has more than 600 lines, in tests, scripts and benchmarks too.
- A plugin's name in the core is a string that names a package of `envs` or `adapters`, or an entry
  point in a group of which a user chooses one. Install hints and defaults are listed in `ALLOWED`.

A chain of more than 24 links, a function with many parameters that `KEYWORDS` does not list, a long
file or a plugin's name is an error. `scripts/code_lines.py` counts the lines of code.
"""

import argparse
import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CORE: Final = "envkit"
SHELVES: Final = ("envs", "adapters")
LONG: Final = 600
"""Lines of a file, above which it holds more than one concept."""
DEEPEST: Final = 24
"""Links of an import chain, above which a change at the bottom has too many readers above it."""
MANY: Final = 8
"""Parameters from which a function is listed."""
KEYWORDS: Final = {
    "an environment's own arguments, each in its page": (
        "envkit.tool_env.__init__", "envkit_browser.miniwob.env.__init__",
        "envkit_browser.pages.env.__init__", "envkit_desktop.env.__init__",
        "envkit_dialogue.env.__init__",
        "envkit_geo3k.env.__init__", "envkit_gymnasium.env.__init__",
        "envkit_gymnasium.zoo.__init__", "envkit_linux_desktop.env.__init__",
        "envkit_harbor.env.__init__", "envkit_mcp.env.__init__", "envkit_openenv.env.__init__",
        "envkit_refine.env.__init__", "envkit_search.env.__init__",
        "envkit_terminal.env.__init__", "envkit_visual.env.__init__",
    ),
    "functions that people call with keywords": (
        "envkit.rollout.player.play", "envkit.rollout.run.collect", "envkit.rollout.tree.play_tree",
        "envkit_visual.canvas.box", "envkit_notebook.branch", "envkit_notebook.branching.rerun",
    ),
    "objects that people build with keywords": (
        "envkit.tokens.codec.__init__", "envkit_remote.engine.__init__",
        "envkit_sinks.wandb.__init__", "envkit_transformers.engine.__init__",
        "envkit_trl.trainer.__init__", "envkit_trl.worker.__init__",
    ),
}  # fmt: skip
"""Functions that may have many keyword parameters, and why: a record of them would be one more name
to learn for each call."""
CHOSEN: Final = ("engines", "players", "sinks", "isolation", "agents", "endpoints", "projections")
"""Groups of entry points of which settings or options name one."""
ALLOWED: Final = {
    "envkit/cli/installed.py": "names of extras, for install lines",
    "envkit/builtin_models.py": "the default engine",
    "envkit/cli/engines.py": "the option --chat",
    "envkit/cli/trust.py": "the option --chat",
    "envkit/rollout/run_settings.py": "the option --chat",
    "envkit/tokens/light.py": "the library transformers",
    "envkit/tokens/loading.py": "the library transformers",
    "envkit/tokens/processor_files.py": "the library transformers",
    "envkit/tokens/vocabulary.py": "the extra transformers",
    "envkit/viewer/summary.py": "the option --chat",
}
"""Core modules that may hold such a string, and why."""


def modules(root: Path) -> dict[str, Path]:
    """Return every module of the core, of environments and of adapters, by its dotted name."""
    found: dict[str, Path] = {}
    for home in (root, *(root / shelf for shelf in SHELVES)):
        for package in home.glob(f"{CORE}*"):
            for file in package.rglob("*.py"):
                parts = file.relative_to(home).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[name] = file
    return found


def imports(file: Path, *, name: str, known: dict[str, Path]) -> set[str]:
    """Return the modules that a module imports when it is imported itself."""
    found: set[str] = set()
    for node in _executed(ast.parse(file.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(one if one in known else node.module for one in inner)
    return (found & known.keys()) - {name}


def _executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at import; not those for type checkers or in functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _executed(node.orelse)
            continue
        yield node
        for name in ("body", "orelse", "handlers", "finalbody"):
            for inner in getattr(node, name, []):
                yield from _executed([inner] if isinstance(inner, ast.stmt) else inner.body)


def deepest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest chain of imports, from the importer down."""
    reach = {name: _reachable(graph, name) for name in graph}
    group = {name: min({name} | {n for n in reach[name] if name in reach[n]}) for name in graph}
    edges: dict[str, set[str]] = {}
    for name, others in graph.items():
        edges.setdefault(group[name], set()).update(group[other] for other in others)

    @cache
    def longest(name: str) -> tuple[str, ...]:
        below = [longest(other) for other in sorted(edges[name]) if other != name]
        return (name, *max(below, key=len, default=()))

    return list(max((longest(name) for name in sorted(edges)), key=len))


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen, left = set[str](), [start]
    while left:
        new = graph[left.pop()] - seen
        seen |= new
        left += new
    return seen


def many_parameters(known: dict[str, Path]) -> list[tuple[int, str]]:
    """Return the functions with many parameters, except `KEYWORDS`: the number and the place."""
    allowed = {one for places in KEYWORDS.values() for one in places}
    found: list[tuple[int, str]] = []
    for name, file in known.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(one.arg not in ("self", "cls") for one in given)
                place = f"{name}.{node.name}"
                if count >= MANY and place not in allowed:
                    found.append((count, place))
    return sorted(found, reverse=True)


def one_importer(graph: dict[str, set[str]], known: dict[str, Path]) -> list[str]:
    """Return the modules that exactly one other module imports."""
    counts = Counter(other for others in graph.values() for other in others)
    return sorted(
        name for name, number in counts.items() if number == 1 and known[name].name != "__init__.py"
    )


def long_files(root: Path) -> list[str]:
    """Return the Python files with too many lines, and their numbers."""
    folders = (CORE, *SHELVES, "tests", "scripts", "benchmarks")
    counted = {
        file.relative_to(root).as_posix(): file.read_text(encoding="utf-8").count("\n")
        for folder in folders
        for file in (root / folder).rglob("*.py")
    }
    return [f"{place}: {count}" for place, count in sorted(counted.items()) if count > LONG]


def plugin_names(root: Path) -> list[str]:
    """Return the strings in the core's code that name a plugin, with their places."""
    with (root / "pyproject.toml").open("rb") as stream:
        groups = tomllib.load(stream)["project"]["entry-points"]
    names = {name for group in CHOSEN for name in groups.get(f"envkit.{group}", {})}
    packages = [path.name for shelf in SHELVES for path in (root / shelf).glob("envkit_*")]
    found: list[str] = []
    for file in sorted((root / CORE).rglob("*.py")):
        place = file.relative_to(root).as_posix()
        if place in ALLOWED:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{place}:{node.lineno}: {node.value!r:.60}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in prose
            and (node.value in names or any(package in node.value for package in packages))
        ]
    return found


def main() -> None:
    """Print the numbers; with --list also what they count."""
    parser = argparse.ArgumentParser(description="Measure the layout of the checkout.")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout (default: this one)")
    parser.add_argument("--list", action="store_true", help="also list what the numbers count")
    options = parser.parse_args()
    known = modules(options.root)
    graph = {name: imports(file, name=name, known=known) for name, file in known.items()}
    chain = deepest_chain(graph)
    rows = {
        "links of the deepest import chain": chain,
        "modules with one importer": one_importer(graph, known),
        f"unlisted functions with {MANY} or more parameters": [
            f"{count} {place}" for count, place in many_parameters(known)
        ],
        f"files over {LONG} lines": long_files(options.root),
        "plugins' names in the core": plugin_names(options.root),
    }
    for name, found in rows.items():
        print(f"{len(found):4} {name}")  # noqa: T201  # the script's output
        if options.list:
            print(*(f"       {one}" for one in found), sep="\n")  # noqa: T201
    _, _, *wrong = rows.values()
    if len(chain) > DEEPEST:
        wrong.append([f"an import chain of {len(chain)} links: {' > '.join(chain)}"])
    if any(wrong):
        print(*(f"wrong: {one}" for found in wrong for one in found), sep="\n")  # noqa: T201
    sys.exit(any(map(bool, wrong)))


if __name__ == "__main__":
    main()
