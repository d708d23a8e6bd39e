"""The package of docs/extension-points.md, installed as another distribution's."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.pages import blocks

from envkit.trajectory import Trajectory, load

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extension-points.md"
COMMANDS = {
    match[0]: line
    for line in (text.strip() for kind, text in blocks(PAGE) if kind == "bash")
    if (match := re.search(r"runs/\w+|doctor", line))
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the page's package, installed."""
    folder = tmp_path_factory.mktemp("parts")
    page = blocks(PAGE)
    (toml,) = (tomllib.loads(text) for kind, text in page if kind == "toml")
    parts = (text for kind, text in page if kind == "python" and text.startswith("# my_parts.py"))
    (folder / "my_parts.py").write_text("\n".join(parts))
    project = toml["project"]
    info = folder / f"my_envkit_parts-{project['version']}.dist-info"
    info.mkdir()
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(header)
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def _run(words: Sequence[str], installed: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", "from envkit.cli import main; main()", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _played(name: str, installed: Path, folder: Path) -> tuple[Trajectory, ...]:
    words = COMMANDS[name].split()[1:]
    done = _run([*words, "--quiet"], installed, folder)
    assert done.returncode == 0, done.stderr
    return load(folder / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rewards"),
    [
        ("runs/oracle", {1.0}),
        ("runs/shout", {1.0}),
        ("runs/parrot", {0.0}),
        ("runs/here", {1.0}),
        ("runs/harness", {1.0}),
    ],
)
def test_part_of_another_package_plays(
    name: str, rewards: set[float], installed: Path, tmp_path: Path
) -> None:
    rows = _played(name, installed, tmp_path)
    assert len(rows) == 4
    assert {row.reward for row in rows} == rewards
    assert not any(row.is_faulted for row in rows)


@pytest.mark.slow
def test_sink_of_another_package_gets_each_episode_once(installed: Path, tmp_path: Path) -> None:
    rows = _played("runs/sink", installed, tmp_path)
    written = (tmp_path / "rewards.txt").read_text().splitlines()
    assert written == [*(f"{row.episode_id} {row.reward}" for row in rows), "mean 1.0"]
    again = _run(
        ["rollout", "--resume", "runs/sink", "--sink", "rewards=rewards.txt"], installed, tmp_path
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "rewards.txt").read_text().splitlines() == written


@pytest.mark.slow
def test_check_of_another_package_is_shown(installed: Path, tmp_path: Path) -> None:
    found = json.loads(_run(["doctor", "--json"], installed, tmp_path).stdout)["checks"]
    assert any(row["found"] == "the parrot is awake" for row in found)


def test_page_lists_the_groups_of_the_project() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        points = tomllib.load(stream)["project"]["entry-points"]
    internal = {"envkit.agents", "envkit.endpoints"}  # one each, which a setting selects
    listed = set(re.findall(r"^\| `(envkit\.\w+)`", PAGE.read_text(), re.M))
    assert {group for group in points if group.startswith("envkit.")} - internal <= listed
    assert COMMANDS.keys() >= {"runs/oracle", "runs/sink", "runs/harness", "doctor"}
