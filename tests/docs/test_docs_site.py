"""The pages as a site: built strictly, and opened in a browser without a network."""

import functools
import subprocess
import sys
import threading
from collections.abc import Generator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fakes.chromium import running_chromium
from fakes.needs import CHROMIUM
from playwright.sync_api import Browser, Page, Route

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ADDRESSES = sorted(
    str(path.relative_to(DOCS).with_suffix("")).removesuffix("index").removesuffix("README")
    for path in DOCS.glob("**/*.md")
)
SOURCES = ("repository/examples/", "repository/benchmarks/engine.py/")
"""Pages of files beside docs/, which the hook brings in."""

ABORTED = "net::ERR_ABORTED"
"""Of a request that the next page overtakes."""

pytestmark = pytest.mark.slow


class Quiet(SimpleHTTPRequestHandler):
    """A file server that says nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Keep quiet."""


def build(config: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", folder]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Address of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr[-4000:]
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with running_chromium() as running:
        yield running


def watch(page: Page, site: str) -> list[str]:
    """Return a list that fills with what a page must not do."""
    trouble: list[str] = []
    page.on("console", lambda m: trouble.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("requestfailed", lambda r: None if r.failure == ABORTED else trouble.append(r.url))
    page.on(
        "request",
        lambda r: None if r.url.startswith((site, "data:")) else trouble.append(f"to {r.url}"),
    )
    return trouble


@CHROMIUM.mark
def test_every_page_opens_from_this_host_alone_and_fits_in_light_and_dark(
    site: str, browser: Browser
) -> None:
    context = browser.new_context(viewport={"width": 480, "height": 900})
    context.route("**/search_index.json", without_documents)
    page = context.new_page()
    trouble = watch(page, site)
    for address in [*ADDRESSES, *SOURCES]:
        page.emulate_media(color_scheme="light")
        answer = page.goto(site + address)
        assert answer is not None
        assert answer.ok, address
        assert wide(page, "default") <= 0, address
        page.emulate_media(color_scheme="dark")
        assert wide(page, "slate") <= 0, address
    context.close()
    assert trouble == []


def without_documents(route: Route) -> None:
    """Empty the search index, which every page reads again for seconds."""
    answer = route.fetch()
    route.fulfill(response=answer, json={**answer.json(), "docs": []})


def wide(page: Page, scheme: str) -> int:
    """Return by how many pixels a page is too wide, once it has a colour scheme."""
    page.locator(f"body[data-md-color-scheme={scheme}]").wait_for()
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


@CHROMIUM.mark
def test_search_finds_the_loss_mask(site: str, browser: Browser) -> None:
    page = browser.new_page()
    trouble = watch(page, site)
    page.goto(site, wait_until="networkidle")
    page.get_by_placeholder("Search").click()
    page.get_by_placeholder("Search").press_sequentially("loss mask")
    page.locator("a.md-search-result__link[href*='concepts/ledger/']").first.wait_for()
    page.close()
    assert trouble == []


@pytest.mark.parametrize(
    ("link", "said"),
    [("no-such-page.md", "no-such-page.md"), ("tutorial.md#no-such-part", "no-such-part")],
)
def test_broken_link_stops_the_build(link: str, said: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Home\n\n[there]({link}), [here](tutorial.md)\n")
    (docs / "tutorial.md").write_text("# Tutorial\n\n[home](index.md)\n")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    head, _, _ = settings.partition("\nnav:\n")
    config = tmp_path / "mkdocs.yml"
    hook = ROOT / "scripts" / "docs" / "repository_files.py"
    config.write_text(head.replace("scripts/docs/repository_files.py", str(hook)))
    (docs / "assets").mkdir()
    (docs / "assets" / "site.css").write_text("")
    done = build(config, tmp_path / "site")
    assert done.returncode != 0
    assert said in done.stderr
