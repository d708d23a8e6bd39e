"""The sandbox, attacked from inside, and reading files without following links."""

import os
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.containers import opened
from fakes.needs import BUBBLEWRAP
from fakes.processes import is_alive

from envkit.errors import MissingDependencyError
from envkit_sandbox.bubblewrap import (
    Sandbox,
    SandboxSpec,
    end,
    find_bubblewrap,
    first_process,
    spawn,
)
from envkit_sandbox.home import Home
from envkit_sandbox.watchdog import processes, watch

SPEC = SandboxSpec(hostname="desk", folders={"/tmp": 8, "/home/user": 8}, folder="/home/user")


def said(command: str, spec: SandboxSpec = SPEC) -> str:
    process = spawn(spec, ["sh", "-c", f"({command}) 2>&1"], stdout=subprocess.PIPE)
    try:
        return process.communicate(timeout=120)[0].decode()
    finally:
        end(process)


@contextmanager
def running(command: str, spec: SandboxSpec) -> Generator[tuple[Sandbox, int]]:
    script = f"{command}\necho up; exec sleep 60"
    process = spawn(spec, ["sh", "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process, first_process(process)
    finally:
        end(process)


def test_home_reads_regular_files_and_lists_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.txt").write_bytes(b"12345")
    with Home(opened(tmp_path)) as home:
        assert home.read("a/b.txt") == b"12345"
        assert home.read("a/b.txt", limit=2) == b"12"
        assert home.names() == ("a",)
        assert home.names("a") == ("b.txt",)
        assert home.names("none") is None


def test_home_follows_nothing_out_of_the_folder_and_never_blocks(tmp_path: Path) -> None:
    inside, secret = tmp_path / "home", tmp_path / "secret"
    inside.mkdir()
    secret.write_text("s")
    (inside / "link").symlink_to(secret)
    (inside / "out").symlink_to(tmp_path)
    (inside / "folder").mkdir()
    os.mkfifo(inside / "fifo")
    with Home(opened(inside)) as home:
        tried = ("link", "out/secret", "../secret", str(secret), "fifo", "", "a\0b", "x" * 5000)
        tried += ("folder", "\ud800")
        assert {path: home.read(path) for path in tried} == dict.fromkeys(tried)
        assert home.names("out") is None
        assert home.names("..") is None
        there = {path: home.exists(path) for path in tried}
    absent = ("", "a\0b", "x" * 5000, "\ud800")
    assert there == {path: path not in absent for path in tried}


def test_a_missing_bubblewrap_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependencyError, match="apt-get install"):
        find_bubblewrap()


@BUBBLEWRAP.mark
def test_sandbox_shows_neither_files_nor_environment_nor_processes_of_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    (tmp_path / "mine").touch()
    out = said(
        f"cat /proc/1/environ /proc/self/environ; tr '\\0' ' ' < /proc/1/cmdline; ls {tmp_path};"
        "ls -d /root /home/* /work /etc/shadow; ls -d /proc/[0-9]* | wc -l"
    )
    assert "hunter2" not in out
    assert "mine" not in out
    assert out.count("No such file") == 4
    assert "/home/user" in out
    assert int(out.split()[-1]) < 8


@BUBBLEWRAP.mark
def test_sandbox_has_no_network_no_privileges_and_no_new_namespaces() -> None:
    out = said(
        "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; cat /proc/net/dev | wc -l;"
        "unshare -U true; unshare -n true; mount -t tmpfs x /tmp"
    )
    assert "CapEff:\t0000000000000000" in out
    assert "NoNewPrivs:\t1" in out
    assert "Seccomp:\t2" in out
    assert out.split("Seccomp:\t2")[1].split()[0] == "3"  # two lines of header, loopback
    assert out.count("Operation not permitted") + out.count("must be superuser") == 3


@BUBBLEWRAP.mark
def test_sandbox_has_sockets_of_four_families_only() -> None:
    script = """
import ctypes, socket
found = set()
for family in range(64):
    for kind in (1, 2, 3):
        for make in (socket.socket, socket.socketpair):
            try:
                make(family, kind)
                found.add(family)
            except OSError:
                pass
wide = ctypes.CDLL(None, use_errno=True)
print(sorted(found), wide.syscall(41, ctypes.c_ulong(40 | 1 << 32), 1, 0))
"""
    assert said(f"python3 -c '{script}'") == "[1, 2, 10, 16] -1\n"


@BUBBLEWRAP.mark
def test_sandbox_writes_only_to_folders_with_a_size() -> None:
    out = said("touch /x /usr/x /dev/x /home/x; head -c 20000000 /dev/zero > big; stat -c %s big")
    assert out.count("Read-only file system") + out.count("Permission denied") == 4
    assert "No space left" in out
    assert int(out.split()[-1]) <= 8 << 20


@BUBBLEWRAP.mark
def test_end_leaves_no_process_of_the_sandbox() -> None:
    spec = SandboxSpec(hostname="desk", folders={"/tmp": 8}, is_first=True)
    with running("setsid sleep 61 & setsid sleep 62 &", spec) as (process, first):
        inside = processes(first)
        assert len(inside) >= 3
        end(process)
        assert not [one for one in inside if Path(f"/proc/{one}").exists()]


@BUBBLEWRAP.mark
@pytest.mark.slow
def test_memory_beyond_the_limit_kills_the_largest_process_alone() -> None:
    hog = "python3 -c 'x = bytes(1) * (300 << 20); import time; time.sleep(60)' &"
    spec = SandboxSpec(hostname="desk", folders={"/tmp": 8}, is_first=True)
    with running(hog, spec) as (process, first):
        memory = watch(first, limit_mib=150)
        until = time.monotonic() + 120
        while not memory.kills and time.monotonic() < until:
            time.sleep(0.05)
        assert memory.kills >= 1
        assert process.poll() is None
        assert is_alive(first)
