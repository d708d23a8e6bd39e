"""The examples of the README and of the pages run as they are written."""

import dataclasses
import re
from collections.abc import Generator
from pathlib import Path

import gymnasium
import pytest
from fakes.command import run_envkit
from fakes.pages import blocks, python_blocks, run_page

from envkit import registration, wrappers
from envkit.cli.sinks import GROUP
from envkit.plugins import plugins
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
SLOW_PAGES = ("../README.md", "sinks.md")
PRINTED = {
    "tools.md": (
        "144\n1.0 True\n(",
        "lookup ok a: found\nlookup ok b: found\nlookup ok c: found\n",
        "1.1 {'short': 0.1, 'right': 1.0}\n",
        "['answered', 'correct', 'brief']\n",
    ),
    "sinks.md": (
        "['board', 'images', 'metrics.json', 'rows.parquet', 'trajectories.jsonl']\n",
        "episode_id, env_id, group_id, rollout_id, role, seed\n",
    ),
}
"""How the output of each example begins."""
EXAMPLES = [
    pytest.param(
        name,
        number,
        id=f"{name.removeprefix('../')}-{number}",
        marks=[pytest.mark.slow] if name in SLOW_PAGES else [],
    )
    for name in (
        "../README.md",
        "environments/audits.md",
        "environments/gymnasium.md",
        "environments/search.md",
        "environments/wrappers.md",
        "sinks.md",
        "tools.md",
    )
    for number in range(len(python_blocks(DOCS / name)))
]
"""Of pages whose examples do not share their names."""
EVERY_PAGE = sorted(str(path.relative_to(DOCS)) for path in DOCS.glob("**/*.md"))


@pytest.mark.parametrize("name", EVERY_PAGE)
def test_python_of_every_page_compiles(name: str) -> None:
    for number, code in enumerate(python_blocks(DOCS / name)):
        compile(code, f"{name} block {number}", "exec")


@pytest.mark.parametrize("name", PAGES)
def test_page_has_an_example(name: str) -> None:
    assert [kind for kind, _ in blocks(DOCS / name) if kind in ("python", "bash")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A folder to work in; what an example registers is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registration, "_registered", dict(registration._registered))
    known = set(gymnasium.registry)
    yield tmp_path
    for added in set(gymnasium.registry) - known:
        del gymnasium.registry[added]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_page_works_as_written(name: str, folder: Path) -> None:
    assert run_page(DOCS / name, folder)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "number"), EXAMPLES)
def test_example_runs_alone(name: str, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    examples = python_blocks(DOCS / name)
    exec(compile(examples[number], f"{name} block {number}", "exec"), {"__name__": "docs"})
    printed = capsys.readouterr().out
    assert printed.strip()
    if name in PRINTED:
        assert len(PRINTED[name]) == len(examples)
        assert printed.startswith(PRINTED[name][number])


def test_readme_is_short_and_has_examples() -> None:
    readme = DOCS.parent / "README.md"
    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 150
    assert len(python_blocks(readme)) >= 2


def test_an_environment_of_tools_takes_fifteen_lines() -> None:
    first = python_blocks(DOCS / "tools.md")[0].split("env.reset")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 15


def test_page_on_sinks_names_every_sink() -> None:
    rows = re.findall(r"^\| `([a-z]+)", (DOCS / "sinks.md").read_text(encoding="utf-8"), re.M)
    assert set(plugins(GROUP)) <= set(rows)


def test_page_on_wrappers_names_every_wrapper() -> None:
    page = (DOCS / "environments" / "wrappers.md").read_text(encoding="utf-8")
    public = [name for name in wrappers.__all__ if isinstance(getattr(wrappers, name), type)]
    bases = {"EnvWrapper", "ImageWrapper", "Member"}
    assert [name for name in public if name not in bases and f"`{name}`" not in page] == [
        "LevelProgress"
    ]
    assert all(f"`{name}`" in page for name in wrappers.WRAPPERS)


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
