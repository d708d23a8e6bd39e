"""Published figures come from one file, and links survive a package index."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
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
