"""Links lead somewhere, figures come from one file, and the reference lists every name once."""

import importlib
import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


def links(text: str) -> list[str]:
    """Targets of a page's links, those in code left out."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    return [first or second for first, second in LINK.findall(prose)]


def anchors(text: str) -> set[str]:
    """What GitHub names a page's headings."""
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    titles = re.findall(r"^#+ +(.*?) *$", prose, re.M)
    words = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {word.replace(" ", "-") for word in words}


def test_pages_are_found() -> None:
    assert len(PAGES) > 15
    assert sum(len(links(page.read_text(encoding="utf-8"))) for page in PAGES) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken: list[str] = []
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        is_there = target.exists()
        if is_there and anchor:
            is_there = anchor in anchors(target.read_text(encoding="utf-8"))
        if not is_there:
            broken.append(link)
    assert broken == []


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in links(page.read_text(encoding="utf-8"))
    }
    alone = [
        page
        for page in PAGES
        if "docs" in page.relative_to(ROOT).parts and page.resolve() not in linked
    ]
    assert [str(page.relative_to(ROOT)) for page in alone] == []


def test_images_of_the_site_are_markdown() -> None:
    # MkDocs moves each page into its own folder and does not change addresses in HTML.
    pages = [page for page in PAGES if "docs" in page.relative_to(ROOT).parts]
    assert [page.name for page in pages if "<img" in page.read_text(encoding="utf-8")] == []


README = (ROOT / "README.md").read_text(encoding="utf-8")
RELATIVE = re.compile(r'\]\((?![a-z]+:|#)[^)]+\)|src="(?![a-z]+:)')


def script(path: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_pages_state_the_published_figures() -> None:
    figures = script("scripts/docs/figures.py")
    known, blocks = figures.figures(), figures.templates()
    for name in figures.PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        assert figures.written(page, known, blocks) == page


def test_page_of_clients_states_their_results() -> None:
    clients = script("scripts/docs/clients.py")
    assert clients.PAGE.read_text(encoding="utf-8") == clients.page()
    played = {name: tuple(one["packages"]) for name, one in clients.results().items()}
    assert played == clients.pins()
    assert [
        note for one in clients.results().values() for note in one["notes"] if note["refused"]
    ] == []


@pytest.mark.parametrize(
    ("path", "pages"),
    [
        ("vs_trainers>verl>envkit>cpu_ms_per_turn", {"README.md", "docs/comparisons.md"}),
        ("histories>canary>append>reward", {"docs/concepts/histories.md"}),
        ("tree>tree>after", {"docs/concepts/trees.md"}),
    ],
)
def test_changed_figure_changes_every_page_that_states_it(path: str, pages: set[str]) -> None:
    figures = script("scripts/docs/figures.py")
    known, blocks = figures.figures(), figures.templates()
    *parents, key = path.split(">")
    place = known
    for name in parents:
        place = place[name]
    place[key] = 4321.0
    changed = {
        name
        for name in figures.PAGES
        if "4321.0" in figures.written((ROOT / name).read_text(encoding="utf-8"), known, blocks)
    }
    assert changed == pages


def test_taken_result_replaces_only_the_published_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = script("scripts/docs/figures.py")
    published = tmp_path / "figures.json"
    published.write_text('{"loop": {"recorded": "2020-01-01", "ratio": 1.0}}')
    (tmp_path / "loop.json").write_text('{"ratio": 1.5, "other": 3}')
    monkeypatch.setattr(figures, "FIGURES", published)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)

    figures.take("loop")

    taken = json.loads(published.read_text())["loop"]
    assert taken.pop("recorded") > "2020-01-01"
    assert taken == {"ratio": 1.5}


def test_unknown_figure_in_a_block_is_refused() -> None:
    with pytest.raises(SystemExit, match="speed"):
        script("scripts/docs/figures.py").fill("{loop>speed:.1f}", {"loop": {}})


@pytest.mark.parametrize("repository", ["", "https://example.org/team/envkit"])
def test_readme_has_no_relative_link_on_a_package_index(repository: str) -> None:
    metadata = script("scripts/packaging/metadata.py")
    shown = metadata.long_description(README, repository)

    prose = re.sub(r"```.*?```", "", shown, flags=re.S)
    assert RELATIVE.search(re.sub(r"```.*?```", "", README, flags=re.S))
    assert not RELATIVE.search(prose)
    assert "tutorial" in prose
    assert re.findall(r"```.*?```", shown, re.S) == re.findall(r"```.*?```", README, re.S)


def test_package_links_need_a_repository() -> None:
    metadata = script("scripts/packaging/metadata.py")
    assert metadata.project_urls("") == {}
    assert set(metadata.project_urls("https://example.org/team/envkit")) >= {"Repository", "Issues"}


REFERENCE_PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
CORE = sorted((ROOT / "envkit").glob("*/__init__.py"))
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.M)
INTERNAL = {"envkit.cli", "envkit.scaffold", "envkit.threads"}
"""Packages that nobody imports from."""
ADAPTERS = (
    "envkit_certify",
    "envkit_chat",
    "envkit_conformance",
    "envkit_eval",
    "envkit_exchange",
    "envkit_judges",
    "envkit_miles",
    "envkit_notebook",
    "envkit_remote",
    "envkit_sglang",
    "envkit_sinks",
    "envkit_skyrl",
    "envkit_slime",
    "envkit_transformers",
    "envkit_trl",
    "envkit_verl",
    "envkit_vllm",
)

SUBPACKAGES = ("envkit_certify.blind_report.", "envkit_certify.golden.")
"""Imported by their own names."""


def directives() -> list[str]:
    return [
        name
        for page in REFERENCE_PAGES
        for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    ]


def public_names() -> dict[str, str]:
    """Where each public name is defined -> what users import; without the version."""
    packages = ["envkit", *(f"envkit.{path.parent.name}" for path in CORE)]
    found: dict[str, str] = {}
    for package in packages:
        if package in INTERNAL:
            continue
        module = importlib.import_module(package)
        for name in module.__all__:
            if name != "__version__":
                found.setdefault(identity(package, name), f"{package}.{name}")
    return found


def identity(package: str, name: str) -> str:
    """Return one text for all places from which the same thing can be imported."""
    value = getattr(importlib.import_module(package), name)
    home, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    return f"{home}.{own}" if home and own == name else f"{package}.{name}"


def core_directives() -> list[str]:
    return [name for name in directives() if name.startswith("envkit.")]


def test_every_public_name_of_the_core_has_its_place() -> None:
    listed = {identity(*name.rsplit(".", 1)) for name in core_directives()}
    assert sorted(public for place, public in public_names().items() if place not in listed) == []


def test_every_entry_can_be_imported() -> None:
    for name in core_directives():
        package, _, own = name.rpartition(".")
        assert hasattr(importlib.import_module(package), own), name


def test_no_name_is_listed_twice() -> None:
    places = [identity(*name.rsplit(".", 1)) for name in core_directives()]
    others = [name for name in directives() if not name.startswith("envkit.")]
    assert [name for name, count in Counter([*places, *others]).items() if count > 1] == []


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapters_are_listed_in_full(adapter: str) -> None:
    source = (ROOT / "adapters" / adapter / "__init__.py").read_text(encoding="utf-8")
    (names,) = re.findall(r"^__all__ = \[(.*?)\]", source, re.S | re.M)
    public = set(re.findall(r'"(\w+)"', names))
    listed = {
        name.rpartition(".")[2]
        for name in directives()
        if name.startswith(f"{adapter}.") and not name.startswith(SUBPACKAGES)
    }
    assert listed == public


@pytest.mark.parametrize("page", REFERENCE_PAGES, ids=lambda page: page.name)
def test_page_says_what_it_lists(page: Path) -> None:
    title, sentence = page.read_text(encoding="utf-8").split("\n\n")[:2]
    assert title.startswith("# ")
    assert sentence.rstrip().endswith(".")
    assert not sentence.startswith((":::", "#"))
