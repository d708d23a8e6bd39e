"""The core plays, reports and reads runs without what only POSIX systems have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.needs import packages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it changes a Linux process")

TOGETHER = """
import envkit
from envkit.cli import main

def run(*words):
    try:
        main(words)
    except SystemExit as end:
        print("status", words[0], end.code or 0, flush=True)
"""
WHOLE_RUN = """
run("list")
run("rollout", "canary-v0", "--policy", "oracle", "-n", "4", "--out", "runs/a", "--quiet")
run("rollout", "--resume", "runs/a")
run("rollout", "canary-v0", "--policy", "oracle", "-n", "4", "--out", "runs/a", "--overwrite")
for command in ("report", "verify", "view"):
    run(command, "runs/a")
run("merge", "runs/a", "--out", "runs/b")
run("rollout", "terminal-v0", "--policy", "oracle", "-n", "1", "--out", "runs/c")
"""
FILES = """
from pathlib import Path
from envkit.errors import BusyError
from envkit.files import LineFile, remove_leftovers, replace_file

path = Path("lines.jsonl")
with LineFile(path, durable=True) as file:
    for number in range(3):
        file.append(b'{"n": %d}\\n' % number)
    try:
        LineFile(path)
    except BusyError:
        print("busy")
    file.keep_lines({1, 3})
    file.append(b'{"n": 3}\\n')
with path.open("ab") as stream:
    stream.write(b'{"n"')
with LineFile(path) as file:
    print("cut", file.repair())
print(path.read_bytes())
with LineFile(path) as file:
    file.remove()
replace_file(path, b"a\\n", durable=True)
Path(".a.01234567.tmp").touch()
remove_leftovers(Path())
print(sorted(one.name for one in Path().iterdir()))
"""
REFUSALS = """
from importlib import import_module
from pathlib import Path
from envkit.errors import RefusedError
from envkit_browser.driver.process import BrowserProcess
from envkit_gateway import AgentSettings

for refused in (
    lambda: import_module("envkit_isolation"),
    lambda: import_module("envkit_terminal.env"),
    lambda: import_module("envkit_linux_desktop.osworld"),
    lambda: BrowserProcess(Path("chromium"), ()),
    lambda: AgentSettings(command="python agent.py"),
):
    try:
        refused()
    except RefusedError as error:
        print(str(error).partition(", got win32")[0])
AgentSettings(function="math:sqrt")
"""


def as_on_windows(code: str, folder: Path) -> str:
    """Run code in a process that resembles Windows; return its output."""
    begin = "from fakes.windows_like import become; become()\n"
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", begin + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_scripted_run_is_played_and_read_without_posix_names(tmp_path: Path) -> None:
    said = as_on_windows(TOGETHER + WHOLE_RUN, tmp_path)

    statuses = [line.split()[1:] for line in said.splitlines() if line.startswith("status")]
    *good, refused = statuses
    assert {status for _, status in good} == {"0"}, statuses
    assert len(good) == 8
    assert refused == ["rollout", "2"]
    assert "terminal-v0" in said.partition("status list")[0]
    assert (tmp_path / "runs" / "a" / "report.html").stat().st_size > 10_000
    assert len((tmp_path / "runs" / "b" / "trajectories.jsonl").read_bytes().splitlines()) == 4
    assert not list(tmp_path.rglob("*.tmp"))


def test_line_files_keep_their_promises_without_posix_names(tmp_path: Path) -> None:
    assert as_on_windows(FILES, tmp_path).splitlines() == [
        "busy",
        "cut 4",
        r"""b'{"n": 0}\n{"n": 2}\n{"n": 3}\n'""",
        "['lines.jsonl']",
    ]


@packages("docx").mark
def test_what_needs_another_system_says_so(tmp_path: Path) -> None:
    assert as_on_windows(REFUSALS, tmp_path).splitlines() == [
        "environments in worker processes need Linux",
        "sandboxes need Linux",
        "sandboxes need Linux",
        "browsers need Linux",
        "agent.command and agent.harness need Linux or macOS",
    ]
