"""The launch files of examples/geo3k, and the pages that show their commands."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes.launch import EXAMPLES, recorded, run
from fakes.processes import run_python

ROOT = Path(__file__).parents[2]
SHELL = sorted([*EXAMPLES.glob("*.sh"), *EXAMPLES.parent.glob("*/*/*.sh")])
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/run.sh"))


def test_pages_show_the_commands_of_the_launch_files() -> None:
    run_python(ROOT / "scripts/docs/launch.py", "--check")


@pytest.mark.parametrize("name", ["slime", "miles"])
def test_flags_of_a_page_are_those_of_its_launch_file(name: str) -> None:
    page = (ROOT / "docs/trainers" / f"{name}.md").read_text()
    section = page.partition("## A run\n")[2].partition("\n## ")[0]
    script = (EXAMPLES / name / "run.sh").read_text()
    commands = re.findall(r"^python train.py \.\.\. \\\n((?:.*\\\n)*.*)$", section, re.M)
    words = [word for one in commands for word in shlex.split(one.replace("\\\n", " "))]
    flags = {word for word in words if word.startswith("--")}
    assert "--custom-generate-function-path" in flags
    optional = {"--dynamic-sampling-filter-path"}  # the launch files filter nothing
    assert [flag for flag in sorted(flags - optional) if f"{flag} " not in script] == []


@pytest.mark.parametrize("path", SHELL, ids=lambda path: str(path.relative_to(EXAMPLES.parent)))
def test_a_launch_file_is_strict_bash(path: Path) -> None:
    assert "\nset -euo pipefail\n" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, "-x", str(path)], check=True)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_is_complete(folder: Path) -> None:
    has_small = folder.name != "slime_head"
    assert (folder / "run_small.sh").exists() == (folder / "paper.env").exists() == has_small
    readme = (folder / "README.md").read_text()
    assert len(readme.splitlines()) <= 40
    for word in ("pip install", "run.sh", "resum", "GEO3K" if has_small else "slime"):
        assert word in readme, word


@pytest.mark.parametrize("name", ["verl", "skyrl", "trl"])
def test_a_launch_file_refuses_an_unknown_experiment(tmp_path: Path, name: str) -> None:
    done = run(f"{name}/run.sh", tmp_path, variables={"PAPER": "3"})
    assert done.returncode == 2
    assert "PAPER must be 1 or 2, got 3" in done.stderr


def test_ray_wrapper_submits_a_launch_file_with_its_settings(tmp_path: Path) -> None:
    script = str(EXAMPLES / "verl" / "run.sh")
    done = run("ray_job.sh", tmp_path, [script, "GPUS=4", "OUT=/shared/a b"])
    assert done.returncode == 0, done.stderr
    (words,) = recorded(tmp_path, "ray")
    assert words[:2] == ["job", "submit"]
    assert '--runtime-env-json={"env_vars": {"GPUS": "4", "OUT": "/shared/a b"}}' in words
    assert f"--working-dir={EXAMPLES / 'verl'}" in words
    assert words[-3:] == ["--", "bash", "run.sh"]
