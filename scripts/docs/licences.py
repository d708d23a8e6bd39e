"""Write the page of licences from the metadata of installed packages and a table of shipped files.

    python scripts/docs/licences.py            # write docs/licences.md
    python scripts/docs/licences.py --check    # fail if a package or a shipped file has no entry

The page is also the store: an entry of a package that is not installed here is kept. Environments
of contract tests in the cache count as installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageMetadata, distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "licences.md"
SHIPPED: Final = (
    ("envkit/fonts/*", "Bitstream Vera and DejaVu, public domain", "DejaVu Sans 2.37"),
    (
        "envs/envkit_search/data/*",
        "CC-BY-4.0, MIT, BSD-3-Clause",
        "GeoNames, airportsdata, mendeleev, us; `NOTICE` beside it has the texts and the changes",
    ),
    (
        "adapters/envkit_transformers/models/**/*",
        "Apache-2.0",
        "built-in models, trained from random weights by `scripts/seeing` on envkit's own episodes",
    ),
    ("adapters/envkit_transformers/*.jinja", "Apache-2.0", "written for envkit"),
    ("adapters/envkit_conformance/recordings/**/*", "Apache-2.0", "envkit's own episodes"),
    ("adapters/envkit_notebook/widget.*", "Apache-2.0", "JavaScript and CSS of widgets"),
    ("envkit/viewer/assets/*", "Apache-2.0", "JavaScript and CSS of reports and of `envkit ui`"),
    (
        "envs/envkit_browser/**/page.js",
        "Apache-2.0",
        "injected into pages; its random numbers are sfc32 of Chris Doty-Humphrey, public domain",
    ),
    ("envs/envkit_dialogue/lexicon.txt", "Apache-2.0", "words that customers understand"),
    ("envs/envkit_browser/pages/demos/*", "Apache-2.0", "example pages"),
    ("envkit/scaffold/templates/*", "Apache-2.0", "what `envkit new` writes; yours to license"),
)
"""Files in the wheel that are not Python: pattern, licence, and what they are."""
DECLARED: Final = {
    "axe-playwright-python": "MIT",
    "openai-harmony": "Apache-2.0",
    "prime-pydantic-config": "Apache-2.0",
    "protobuf-py-ext": "Apache-2.0",
    "skyrl": "Apache-2.0",
    "zss": "BSD-3-Clause",
}
LISTS: Final = ("harbor", "mcp", "openenv", "ray", "skyrl", "trl", "verifiers", "verl")
"""Extras whose packages are pinned in `scripts/contracts`."""
SPELLINGS: Final = {
    r"apache(?: software)?(?: license)?,?(?: version)? ?2(?:\.0)?(?: license)?": "Apache-2.0",
    r"apache(?: software)?(?: license)?": "Apache-2.0",
    r"(?:the )?mit license(?: \(mit\))?|mit": "MIT",
    r"bsd license": "BSD",
    r"3-clause bsd license|bsd 3-clause(?: license)?|bsd 3": "BSD-3-Clause",
    r"bsd 2-clause license": "BSD-2-Clause",
    r"isc license(?: \(iscl\))?": "ISC",
    r"mozilla public license 2\.0 \(mpl 2\.0\)": "MPL-2.0",
    r"python software foundation license|psfl?": "PSF-2.0",
}
INTRODUCTION: Final = """\
# Licences

envkit is Apache-2.0 (`LICENSE`). `python scripts/docs/licences.py` writes this page from the
metadata of the packages; `make check` fails if one, or a shipped file, has no entry here.

## Shipped files

What the wheel contains besides Python code.

"""
PACKAGES: Final = """
## Packages

envkit ships none of these. `pip install envkit-rl` brings the first row, with what that needs from
the others. The middle column has the extras of one environment, and what develops and tests
envkit; the last one has what these extras add: {lists}.

"""
HEAD: Final = "| licence | packages | added |\n| --- | --- | --- |\n"
CORE: Final = "**core**"


def main() -> int:
    """Write or check the page; return the exit status."""
    known = entries(PAGE.read_text("utf-8")) if PAGE.exists() else {}
    is_check = "--check" in sys.argv[1:]
    ours, theirs = wanted()
    licences = known if is_check else known | installed(ours | theirs)
    missing = sorted((ours | theirs) - licences.keys())
    problems = [f"{name} has no licence: install it and run scripts/docs/licences.py, or declare it"
                for name in missing]  # fmt: skip
    problems += unlicensed_files()
    text = "".join(page(licences, ours, theirs)) if not missing else ""
    if is_check and not problems and text != PAGE.read_text("utf-8"):
        problems.append(f"{PAGE.name} is out of date: run scripts/docs/licences.py")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if not is_check and not missing:
        PAGE.write_text(text, "utf-8")
    return int(bool(problems))


def wanted() -> tuple[set[str], set[str]]:
    """Return the names of our packages, and of those that only `LISTS` bring."""
    ours = names((ROOT / "constraints.txt").read_text("utf-8").splitlines())
    ours |= core()
    extras = project()["optional-dependencies"]
    theirs = {name for one in LISTS for name in names(extras[one])}
    ours |= {name for extra in extras.keys() - {*LISTS} for name in names(extras[extra])}
    for one in LISTS:
        path = ROOT / "scripts" / "contracts" / one / "requirements.txt"
        theirs |= names(path.read_text("utf-8").splitlines())
    return ours, theirs - ours


def core() -> set[str]:
    """Return the names of the core's own dependencies."""
    return names(project()["dependencies"])


def project() -> dict[str, dict[str, list[str]]]:
    """Return the project's table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def names(requirements: Iterable[str]) -> set[str]:
    """Return the normalized names of packages in requirements, without our own."""
    found = (re.match(r"[A-Za-z0-9][\w.-]*", line) for line in requirements)
    return {normalized(one[0]) for one in found if one} - {"envkit-rl"}


def normalized(name: str) -> str:
    """Return a name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(wanted: set[str]) -> dict[str, str]:
    """Return the licences of the wanted packages that are installed here."""
    sys.path.insert(0, str(ROOT / "scripts" / "contracts"))
    from environment import cache_root

    folders = [str(path) for path in cache_root().glob("*/lib/python*/site-packages")]
    found: dict[str, str] = {}
    for path in (folders, sys.path):
        for one in distributions(path=path):
            name = normalized(one.metadata["Name"])
            licence = DECLARED.get(name) or licence_of(one.metadata)
            if name in wanted and licence:
                found[name] = licence
    return found


def licence_of(metadata: PackageMetadata) -> str:
    """Return the licence that a package declares; empty if it declares none."""
    rows = metadata.get_all("Classifier") or []
    classified = [row.rpartition(" :: ")[2] for row in rows if row.startswith("License :: ")]
    said = [text.strip() for text in metadata.get_all("License") or []]
    named = [one for one in classified if one != "OSI Approved"]
    precise = [one for one in said if 0 < len(one) < 40 and one != "UNKNOWN"]
    titles = [text.partition("\n")[0] for text in said]
    found = metadata.get_all("License-Expression") or precise or named or titles
    return " AND ".join(sorted({spelled(one) for one in found}))


def spelled(licence: str) -> str:
    """Return a licence by its SPDX name, if it is one of the common ones."""
    for pattern, name in SPELLINGS.items():
        if re.fullmatch(pattern, licence.strip(), re.IGNORECASE):
            return name
    return licence.strip().replace("|", "/")


def unlicensed_files() -> list[str]:
    """Return what is wrong with the table of shipped files."""
    covered: set[Path] = set()
    problems: list[str] = []
    for pattern, _, _ in SHIPPED:
        matched = {path for path in ROOT.glob(pattern) if path.is_file()}
        if not matched:
            problems.append(f"{pattern} in SHIPPED matches no file: remove the line")
        covered |= matched
    for folder in ("envkit", "envs", "adapters"):
        for path in (ROOT / folder).rglob("*"):
            is_code = path.suffix in (".py", ".pyc") or path.name == "py.typed"
            if path.is_file() and not is_code and path not in covered:
                problems.append(f"{path.relative_to(ROOT)} has no licence: add it to SHIPPED")
    return problems


def page(licences: dict[str, str], ours: set[str], theirs: set[str]) -> Iterator[str]:
    """Yield the parts of the page."""
    yield INTRODUCTION
    yield "| files | licence | what |\n| --- | --- | --- |\n"
    for pattern, licence, what in SHIPPED:
        yield f"| `{pattern}` | {licence} | {what} |\n"
    yield PACKAGES.format(lists=", ".join(f"`{one}`" for one in LISTS)) + HEAD
    first = core()
    yield f"| {CORE} | {', '.join(f'{one} ({licences[one]})' for one in sorted(first))} | |\n"
    for licence in sorted({licences[one] for one in ours | theirs}, key=str.lower):
        own, more = (
            ", ".join(sorted(one for one in group if licences[one] == licence))
            for group in (ours - first, theirs)
        )
        if own + more:
            yield f"| {licence} | {own} | {more} |\n"


def entries(text: str) -> dict[str, str]:
    """Return the licence of each package on the page."""
    found: dict[str, str] = {}
    for line in text.partition(HEAD)[2].splitlines():
        licence, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if licence == CORE:
            found.update(re.findall(r"([\w-]+) \(([^)]*)\)", cells[0]))
        elif len(cells) == 2:
            found.update(dict.fromkeys(filter(None, ", ".join(cells).split(", ")), licence))
    return found


if __name__ == "__main__":
    sys.exit(main())
