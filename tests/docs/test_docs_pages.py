"""The examples of the how-to pages and the concepts run as they are written."""

import dataclasses
import re
from pathlib import Path

import gymnasium
import pytest
from fakes.command import run_envkit
from fakes.pages import blocks, python_blocks, run_page

from envkit import registration
from envkit_judges import CallLimits

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "index.md",
    "own-environment.md",
    "datasets.md",
    "judges.md",
    "scaling.md",
    "running/durable.md",
    "running/isolation.md",
    "running/tail.md",
    "engines/README.md",
    "engines/chat.md",
    "engines/own.md",
    "engines/sglang.md",
    "engines/transformers.md",
    "engines/vllm.md",
    "concepts/faults.md",
    "concepts/groups.md",
    "concepts/histories.md",
    "concepts/ledger.md",
    "concepts/trees.md",
    "trainers/README.md",
    "trainers/write-an-adapter.md",
)
EVERY_PAGE = sorted(str(path.relative_to(DOCS)) for path in DOCS.glob("**/*.md"))


@pytest.mark.parametrize("name", EVERY_PAGE)
def test_python_of_every_page_compiles(name: str) -> None:
    for number, code in enumerate(python_blocks(DOCS / name)):
        compile(code, f"{name} block {number}", "exec")


@pytest.mark.parametrize("name", PAGES)
def test_page_has_an_example(name: str) -> None:
    assert [kind for kind, _ in blocks(DOCS / name) if kind in ("python", "bash")]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_page_works_as_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registration, "_registered", dict(registration._registered))
    known = set(gymnasium.registry)
    try:
        assert run_page(DOCS / name, tmp_path)
    finally:
        for added in set(gymnasium.registry) - known:
            del gymnasium.registry[added]


def test_page_of_commands_names_every_command() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| `([a-z-]+)` \|", page, re.M)
    examples = re.findall(r"^\| `([a-z-]+)` \|.*\| `envkit ([a-z-]+)[^|]*` \|$", page, re.M)
    outcome = run_envkit("--help")
    assert [name for name in stated if f" {name} " not in outcome.out] == []
    assert len(stated) == len(re.findall(r"^│ [a-z][a-z-]+ ", outcome.out, re.M))
    assert examples == [(name, name) for name in stated]


def test_page_on_judges_states_the_defaults() -> None:
    page = (DOCS / "judges.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.M))
    for field in dataclasses.fields(CallLimits):
        if field.name != "backoff":
            default = "none" if field.default is None else f"{field.default:g}"
            assert stated[field.name] == default
