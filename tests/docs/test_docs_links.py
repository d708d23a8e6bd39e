"""Links lead somewhere, also from a package index, and published figures come from one file."""

import importlib.util
import json
import re
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
