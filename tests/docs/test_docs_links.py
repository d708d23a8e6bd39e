"""Links between the pages, and from the README to them, lead somewhere."""

import re
from pathlib import Path

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
