#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Play sandboxed environments in real containers and compare the table of the page about them.

    python3 scripts/containers/run.py           every row; fails where a cell differs
    python3 scripts/containers/run.py --write   put what happened into the page

Each cell is `envkit doctor` and a short rollout in a new container: "yes" if doctor says ok and
every episode is played, "no" if doctor says no and the run ends before its first episode. Anything
else fails. The root is a fresh Debian with a clone of HEAD, made as in `scripts/bare`; nothing of
it is left at the end.

Needs root, Debian or Ubuntu, and podman with runc, docker.io, or both. Docker's daemon is started
beside any other. Rows of an engine that is not installed keep their cells. Exit status: 0 as the
page says, 1 otherwise, 2 no container can be made here, 130 interrupted.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bare"))
import run as bare

PAGE: Final = bare.CHECKOUT / "docs" / "running" / "containers.md"
HEAD: Final = (
    "| started with | terminal as root | as a user | Linux desktop as root | as a user |\n"
    "| --- | --- | --- | --- | --- |\n"
)
ROOT, USER = "0:0", "1000:1000"
START_SECONDS: Final = 30.0
CASE_SECONDS: Final = 1200.0
BUILD: Final = """
set -e
export DEBIAN_FRONTEND=noninteractive
python3 -m venv /opt/envkit
/opt/envkit/bin/pip install --only-binary :all: -c constraints.txt '.[linux-desktop]'
apt-get update
$(/opt/envkit/bin/python -c \
  'from envkit_linux_desktop.requirements import INSTALL_LINE; print(INSTALL_LINE)') -y
"""
SECCOMP, SYSTEM_PATHS, UNMASK, ADMIN, NO_RIGHTS, PRIVILEGED = (
    "--security-opt seccomp=unconfined",
    "--security-opt systempaths=unconfined",
    "--security-opt unmask=ALL",
    "--cap-add SYS_ADMIN",
    "--cap-drop ALL",
    "--privileged",
)
ONE_USER: Final = "unshare -Ur"
ROWS: Final = (
    *("docker run", f"docker run {SECCOMP}", f"docker run {SYSTEM_PATHS}", f"docker run {ADMIN}"),
    f"docker run {SECCOMP} {SYSTEM_PATHS}",
    f"docker run {SECCOMP} {SYSTEM_PATHS} {NO_RIGHTS}",
    *("podman run", f"podman run {SECCOMP}", f"podman run {UNMASK}", f"podman run {ADMIN}"),
    f"podman run {ADMIN} {UNMASK}",
    f"podman run {SECCOMP} {UNMASK}",
    f"podman run {SECCOMP} {UNMASK} {NO_RIGHTS}",
    f"podman run {PRIVILEGED}",
    ONE_USER,
)
FAMILY: Final = ("--env-kwargs", 'families=["make_folder"]')
PLAYS: Final = {
    "terminal": ("terminal-v0", "-n", "2"),
    "linux-desktop": ("computer-use-linux-v0", "-n", "1", *FAMILY),
}
CROWD: Final = {"linux-desktop": ("computer-use-linux-v0", "-n", "24", *FAMILY)}
"""More desktops at once than fit into the 64 MB of /dev/shm that a container has."""
CASE: Final = """
import json, subprocess, sys, tempfile

def run(*words):
    return subprocess.run(["/opt/envkit/bin/envkit", *words], capture_output=True, text=True)

listed = json.loads(run("doctor", "--json").stdout)["checks"]
checks = {one["name"]: one for one in listed if one["area"] == "plugin"}
found = {}
for name, words in json.loads(sys.argv[1]).items():
    options = ("--policy", "oracle", "--json", "--out", f"{tempfile.mkdtemp()}/run")
    done = run("rollout", *words, *options)
    metrics = json.loads(done.stdout)["metrics"] if done.stdout else {}
    found[name] = {
        "doctor": checks[name]["status"],
        "code": done.returncode,
        "episodes": metrics.get("episodes", 0),
        "faults": metrics.get("episodes/faulted"),
        "says": [checks[name]["found"], done.stderr[-800:]],
    }
print(json.dumps(found))
"""


class Machine(NamedTuple):
    """Where containers start."""

    root: Path
    """Their file system."""
    socket: Path | None
    """That of Docker's daemon; None without one."""

    def command(self, row: str, user: str) -> list[str] | None:
        """Return the start of a command in a container; None if this machine cannot make it."""
        engine, *flags = shlex.split(row)
        flags += ["--rm", "--network", "none", "--env", "HOME=/tmp", "--user", user]
        if engine == "docker" and self.socket is not None:
            return ["docker", "-H", f"unix://{self.socket}", *flags, "envkit-containers"]
        if engine == "podman" and shutil.which("podman"):
            return ["podman", *flags, "--rootfs", f"{self.root}:O"]
        return None


def main() -> int:
    """Make the root, play every row and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put what happened into the page")
    options = parser.parse_args()
    bare.end_on_signals()
    try:
        with bare.unpacked(bare.ensure_base(bare.cache_folder())) as root:
            prepare(root)
            with docker(root) as socket:
                return report(Machine(root, socket), is_written=options.write)
    except bare.BareError as error:
        print(f"containers: no container can be made here: {error}", file=sys.stderr)
        return bare.EXIT_IMPOSSIBLE
    except KeyboardInterrupt:
        print("containers: interrupted", file=sys.stderr)
        return bare.EXIT_INTERRUPTED


def prepare(root: Path) -> None:
    """Install HEAD and the applications of the Linux desktop.

    Raises:
        BareError: A package cannot be installed.
    """
    bare.say("installing envkit and the applications of the Linux desktop")
    (root / "opt" / "case.py").write_text(CASE)
    (root / "opt" / "build.sh").write_text(BUILD)
    log = f"{bare.OUT}/build.log"
    if bare.run_inside(root, f"bash /opt/build.sh > {log} 2>&1 || {{ tail -n 30 {log}; false; }}"):
        raise bare.BareError("a package cannot be installed")


@contextmanager
def docker(root: Path) -> Iterator[Path | None]:
    """Start Docker's daemon with an image of the root and yield its socket; None without Docker."""
    if not (shutil.which("dockerd") and shutil.which("docker")):
        bare.say("docker.io is not installed; its rows are not tried")
        yield None
        return
    folder = root.parent / "docker"
    folder.mkdir()
    socket = folder / "socket"
    words = ["dockerd", f"--host=unix://{socket}", f"--pidfile={folder}/pid"]
    words += [f"--data-root={folder}/data", f"--exec-root={folder}/run"]
    words += ["--bridge=none", "--iptables=false", "--ip6tables=false"]  # the network stays as is
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_SECONDS
        while not socket.exists() and daemon.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        pack = f"tar -C {root} -c . | docker -H unix://{socket} import - envkit-containers"
        done = subprocess.run(pack, shell=True, capture_output=True, check=False)
        if done.returncode:
            raise bare.BareError(f"docker import failed: {done.stderr.decode()[-2000:]}")
        yield socket
    finally:
        daemon.terminate()
        daemon.wait()


def report(machine: Machine, *, is_written: bool) -> int:
    """Play the rows, compare or write the page's table, and return the exit status."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(HEAD)
    old, _, after = rest.partition("\n\n")
    rows, problems = [], []
    for row in ROWS:
        cells = [outcome(case(machine, row, user, PLAYS)) for user in (ROOT, USER)]
        known = [line for line in old.splitlines() if line.startswith(f"| `{row}` |")]
        if cells[0] is None:
            rows += known
            continue
        root, user = cells[0], cells[1] or dict.fromkeys(PLAYS, "-")
        listed = [one[name] for name in PLAYS for one in (root, user)]
        rows.append(f"| `{row}` | {' | '.join(listed)} |")
        bare.say(rows[-1])
        if not {*listed} <= {"yes", "no", "-"}:
            problems.append(f"doctor and the rollout differ: {rows[-1]}")
        elif known != rows[-1:] and not is_written:
            problems.append(f"the page says {known}, but this happened: {rows[-1]}")
    crowd = outcome(case(machine, f"podman run {SECCOMP} {UNMASK}", USER, CROWD))
    if crowd is not None and crowd["linux-desktop"] != "yes":
        problems.append(f"24 desktops in a small /dev/shm: {crowd['linux-desktop']}")
    if is_written and not problems:
        PAGE.write_text("\n".join((before + HEAD + rows[0], *rows[1:], "", after)))
    for problem in problems:
        bare.say(problem)
    return bare.EXIT_FAILED if problems else 0


def case(machine: Machine, row: str, user: str, plays: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what doctor and rollouts say in a new container; None if it cannot be tried."""
    words = ["/opt/envkit/bin/python", "/opt/case.py", json.dumps(plays)]
    if row == ONE_USER:
        if user == USER:
            return None
        out = machine.root / bare.OUT.lstrip("/") / "case.json"
        bare.run_inside(machine.root, f"{row} {shlex.join(words)} > {bare.OUT}/{out.name}")
        said = out.read_text()
    else:
        start = machine.command(row, user)
        if start is None:
            return None
        done = subprocess.run(
            [*start, *words], capture_output=True, text=True, check=False, timeout=CASE_SECONDS
        )
        said = done.stdout or json.dumps({"error": done.stderr[-2000:]})
    return dict(json.loads(said))


def outcome(found: dict[str, Any] | None) -> dict[str, str] | None:
    """Return "yes", "no", or what happened instead, for each environment."""
    if found is None:
        return None
    if "error" in found:
        return dict.fromkeys(PLAYS, found["error"])
    cells = {}
    for name, one in found.items():
        plays = one["code"] == 0 and one["episodes"] > 0 and one["faults"] == 0
        refuses = one["code"] == 2 and one["episodes"] == 0
        match one["doctor"]:
            case "ok" if plays:
                cells[name] = "yes"
            case "no" if refuses:
                cells[name] = "no"
            case _:
                cells[name] = json.dumps(one)
    return cells


if __name__ == "__main__":
    sys.exit(main())
