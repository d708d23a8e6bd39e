"""What the README and the pages show runs and prints what it says."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Generator, Sequence
from pathlib import Path

import gymnasium
import pytest
from contracts.effects import effects_table
from fakes.command import run_envkit
from fakes.launch import EXAMPLES, recorded, run
from fakes.pages import blocks, python_blocks, run_page
from fakes.processes import run_python

from envkit import registration, wrappers
from envkit.cli.sinks import GROUP
from envkit.errors import FaultKind
from envkit.plugins import plugins
from envkit.rollout import FaultPolicy, RetryBudget
from envkit.trajectory import FaultPlace, StopReason, Trajectory, load, verify_file
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
    "environments/README.md",
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
PYTHON_EXAMPLES = [
    pytest.param(
        name,
        number,
        id=f"{name.removeprefix('../')}-{number}",
        marks=[pytest.mark.slow] if name in SLOW_PAGES else [],
    )
    for name in (
        "../README.md",
        "environments/certification.md",
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
@pytest.mark.parametrize(("name", "number"), PYTHON_EXAMPLES)
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
    bases = {"EnvWrapper", "ImageWrapper", "Member", "TwinPlace", "Wrapped"}
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


PAGE = DOCS / "recovery.md"
DOC = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*StopReason, *FaultKind, *FaultPlace, *FaultPolicy])
def test_page_names_every_ending_kind_place_and_policy(name: str) -> None:
    assert f"`{name}`" in DOC


def test_the_page_on_cut_replies_faults_and_zeros_is_short() -> None:
    assert len((DOCS / "failures.md").read_text(encoding="utf-8").split()) < 900


def test_page_states_the_defaults_of_the_budget() -> None:
    stated = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|$", DOC, re.M))
    fields = {f.name: f.default for f in dataclasses.fields(RetryBudget) if f.name != "backoff"}
    assert {name: float(value) for name, value in stated.items()} == fields


def test_page_shows_what_the_trainers_suites_measured() -> None:
    """With ENVKIT_WRITE_DOCS=1 the table is written first."""
    page = PAGE.read_text(encoding="utf-8")
    start, end = "<!-- effects -->\n", "<!-- /effects -->"
    before, _, rest = page.partition(start)
    shown, _, after = rest.partition(end)
    table = f"\n{effects_table()}\n"
    if os.environ.get("ENVKIT_WRITE_DOCS"):
        PAGE.write_text(f"{before}{start}{table}{end}{after}", encoding="utf-8")
        shown = table
    assert shown == table


@pytest.mark.slow
def test_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = python_blocks(PAGE)
    (printed,) = re.findall(r"```\n(\{.*?)```", DOC, re.S)
    exec(compile(code, PAGE.name, "exec"), {"__name__": "docs"})
    stated, found = (
        [set(re.findall(r"\(.*?\)", line)) for line in text.splitlines()]
        for text in (printed, capsys.readouterr().out)
    )
    assert found == stated


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


TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
TEXT = TUTORIAL.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", TEXT, re.S)
SET_UP = ("make setup", "source .venv/bin/activate")
INSTALL = "pip install -e '.[dev]'"
INSTALL_HERE = 'pip install -q --no-deps --no-build-isolation --no-index --target "$SITE" .'
"""Beside this environment instead of into it."""


def script() -> str:
    """All blocks in order, as one script."""
    lines = ["set -eu"]
    for kind, block in BLOCKS:
        if kind == "python":
            lines += ["python - <<'END'", block, "END"]
            continue
        for line in block.splitlines():
            assert "pip install" not in line or line == INSTALL
            if line not in SET_UP:
                lines.append(INSTALL_HERE if line == INSTALL else line)
    return "\n".join(lines)


def test_tutorial_names_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert [link for link in links if not (TUTORIAL.parent / link).exists()] == []
    assert (TUTORIAL.parents[1] / "examples" / "learn_canary_trl.py").exists()


@pytest.mark.slow
def test_tutorial_works_as_written(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run(
        ["bash", "-c", script()],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(site),
            "SITE": str(site),
        },
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for sign in (
        "all sound",
        "contract  pass",
        "passed",
        "trained",
        "of the prompt",
    ):
        assert sign in done.stdout
    assert (tmp_path / "runs" / "dots.parquet").stat().st_size > 0


EXTENSIONS = DOCS / "extension-points.md"
COMMANDS = {
    match[0]: line
    for line in (text.strip() for kind, text in blocks(EXTENSIONS) if kind == "bash")
    if (match := re.search(r"runs/\w+|doctor", line))
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the page's package, installed."""
    folder = tmp_path_factory.mktemp("parts")
    page = blocks(EXTENSIONS)
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
    listed = set(re.findall(r"^\| `(envkit\.\w+)`", EXTENSIONS.read_text(), re.M))
    assert {group for group in points if group.startswith("envkit.")} - internal <= listed
    assert COMMANDS.keys() >= {"runs/oracle", "runs/sink", "runs/harness", "doctor"}


CLUSTERS = DOCS / "running/clusters.md"
SCRIPT, ARRAY, MERGE, _ = [code for kind, code in blocks(CLUSTERS) if kind == "bash"]
_EPISODES = "-n 4096"
_REST = SCRIPT.partition("--quiet &\n")[2]
"""What the page says is the same for both scripts."""


@pytest.fixture
def bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with `envkit` and `scontrol` as commands."""
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    main = "import sys; from envkit.cli import main; main(sys.argv[1:])"
    _write(programs / "envkit", f"exec {sys.executable} -c '{main}' \"$@\"")
    _write(programs / "scontrol", 'echo "$@" >> scontrol.log')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return tmp_path


def _write(file: Path, line: str) -> None:
    file.write_text(f"#!/bin/bash\n{line}\n")
    file.chmod(0o755)


def start(script: str, **variables: object) -> "subprocess.Popen[str]":
    values = {name: str(value) for name, value in variables.items()}
    return subprocess.Popen(
        ["bash", "-c", script],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **values},
    )


@pytest.mark.slow
def test_job_that_runs_out_of_time_is_put_back_and_completed_by_the_next(bash: Path) -> None:
    script = SCRIPT.replace(_EPISODES, "-n 400")
    rows, requeued = bash / "runs/base/trajectories.jsonl", bash / "scontrol.log"
    with start(script, SLURM_JOB_ID=71) as job:
        while not rows.exists() or rows.read_bytes().count(b"\n") < 20:
            assert job.poll() is None, job.communicate()
            time.sleep(0.02)
        job.send_signal(signal.SIGUSR1)
        said = job.communicate(timeout=240)[0]
    assert job.returncode == 138, said
    assert requeued.read_text() == "requeue 71\n"
    stored = {one.episode_id for one in load("runs/base")}
    for _ in range(2):
        with start(script, SLURM_JOB_ID=71) as job:
            said = job.communicate(timeout=240)[0]
        assert job.returncode == 0, said
    assert "is finished: all 400 episodes are done" in said
    assert requeued.read_text() == "requeue 71\n"
    assert len(load("runs/base")) == 400
    assert stored <= {one.episode_id for one in load("runs/base")}


@pytest.mark.slow
def test_array_plays_the_shards_that_the_merge_joins(bash: Path) -> None:
    count = 3  # fewer than the page's, since each is a process
    script = ARRAY.replace(_EPISODES, "-n 48") + _REST
    for number in range(count):
        variables = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_TASK_COUNT": count}
        with start(script, **variables) as job:
            said = job.communicate(timeout=120)[0]
        assert job.returncode == 0, said
    (command,) = re.findall(r"--wrap '(.*)'", MERGE)
    with start(command) as job:
        said = job.communicate(timeout=120)[0]
    assert job.returncode == 0, said
    assert len(load("runs/merged")) == 48
    assert verify_file("runs/merged").is_sound
