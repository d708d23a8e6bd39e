"""A terminal session: commands, deadlines, limits, isolation, and what a policy may attack."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.matrix import share
from fakes.needs import BUBBLEWRAP
from fakes.processes import wait_until_gone

from envkit.errors import EnvFault, FaultKind
from envkit_terminal.grader_sandbox import FinalState
from envkit_terminal.grading import grade
from envkit_terminal.session import HOME, Entry, Limits, Ran, TerminalSession

pytestmark = BUBBLEWRAP.mark


@pytest.fixture
def session() -> Iterator[TerminalSession]:
    limits = Limits(home_mib=16, memory_mib=256, processes=40, output_head=100, output_tail=100)
    with TerminalSession(limits=limits, folders=("/app",)).start() as started:
        yield started


def run(session: TerminalSession, command: str, seconds: float = 120.0) -> Ran:
    return session.run(command, seconds=seconds)


def processes_of(session: TerminalSession) -> list[int]:
    """Return the host's numbers of the sandbox's processes."""
    assert session._process is not None
    return below(session._process.pid)


def below(pid: int) -> list[int]:
    """Return a process and all below it."""
    found, fresh = list[int](), [pid]
    while fresh:
        found += fresh
        fresh = [
            int(child)
            for pid in fresh
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return found


def test_shell_keeps_folder_and_variables(session: TerminalSession) -> None:
    assert run(session, "echo one; false").code == 1
    run(session, "cd /tmp; X=5; f() { echo f$X; }")
    assert run(session, "f; pwd") == Ran(output="f5\n/tmp\n", code=0, folder="/tmp")


def test_output_and_errors_come_in_order(session: TerminalSession) -> None:
    assert run(session, "echo a; echo b >&2; echo c").output == "a\nb\nc\n"


@pytest.mark.parametrize(
    "command", ["echo 'open", "if true; then", "echo $((", "cat", "read x; echo $x", "\0", ""]
)
def test_incomplete_command_ends_at_once(session: TerminalSession, command: str) -> None:
    assert not run(session, command, seconds=5.0).timed_out
    assert run(session, "echo on").output == "on\n"


def test_quotes_and_here_documents_arrive_unchanged(session: TerminalSession) -> None:
    ran = run(session, "cat <<'END'\na 'b' \"c\" $d `e` \\f ü\nEND\n")
    assert ran.output == "a 'b' \"c\" $d `e` \\f ü\n"


def test_exit_ends_the_shell_and_a_new_one_starts(session: TerminalSession) -> None:
    ran = run(session, "X=1; exit 3")
    assert (ran.code, ran.is_new_shell) == (3, True)
    assert run(session, "echo [$X]").output == "[]\n"


def test_locked_folders_do_not_keep_a_shell_from_starting(session: TerminalSession) -> None:
    assert run(session, "chmod 000 ~; exit 3").is_new_shell
    assert run(session, "pwd").output == "/\n"
    assert run(session, "chmod 700 ~; exit").is_new_shell
    assert run(session, "pwd").output == f"{HOME}\n"


def test_dead_shell_is_replaced_while_a_process_holds_its_pipes(session: TerminalSession) -> None:
    holds = "for n in /proc/$$/fd/*; do sleep 60 {f}>$n & done 2>/dev/null; sleep 0.1; kill -9 $$"
    assert run(session, holds).is_new_shell
    assert run(session, "echo on").output == "on\n"


def test_long_output_keeps_head_and_tail(session: TerminalSession) -> None:
    ran = run(session, "seq 1 100000")
    assert ran.output.startswith("1\n2\n3\n")
    assert ran.output.endswith("99999\n100000\n")
    assert f"[... {ran.cut} bytes left out ...]" in ran.output
    assert ran.cut == 588_895 - 200


def test_hanging_command_is_interrupted_and_the_shell_stays(session: TerminalSession) -> None:
    run(session, "X=kept")
    ran = run(session, "sleep 60", seconds=0.5)
    assert (ran.code, ran.timed_out, ran.is_new_shell) == (130, True, False)
    assert run(session, "echo $X").output == "kept\n"


def test_hanging_command_is_interrupted_under_a_driver_that_ignores_interrupts() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and "&" have it
    try:
        with TerminalSession().start() as session:
            assert run(session, "sleep 60", seconds=0.3).code == 130
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_command_that_ignores_interrupts_is_killed(session: TerminalSession) -> None:
    ran = run(session, "bash -c \"trap '' INT; sleep 60\"", seconds=0.3)
    assert ran.timed_out
    assert ran.code != 0
    assert run(session, "pgrep sleep").code == 1


@pytest.mark.slow
def test_loop_in_the_shell_itself_costs_the_shell(session: TerminalSession) -> None:
    ran = run(session, "while :; do :; done", seconds=0.3)
    assert (ran.code, ran.timed_out, ran.is_new_shell) == (137, True, True)
    assert run(session, "echo on").output == "on\n"


def test_background_process_survives_its_command_and_a_later_deadline(
    session: TerminalSession,
) -> None:
    run(session, "sleep 60 &")
    time.sleep(0.05)
    run(session, "sleep 50", seconds=0.3)
    assert run(session, "pgrep -c sleep").output == "1\n"


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("f() { f | f & }; f; sleep 5", "processes"),
        ("python3 -c 'x = b\"1\" * (400 << 20); import time; time.sleep(9)'", "memory"),
    ],
)
def test_session_over_a_limit_loses_its_processes(
    session: TerminalSession, command: str, limit: str
) -> None:
    ran = run(session, command)
    assert (ran.limit, ran.is_new_shell) == (limit, True)
    time.sleep(0.3)
    assert run(session, "echo on").output == "on\n"


def test_killing_everything_inside_leaves_the_session_usable(session: TerminalSession) -> None:
    run(session, "touch kept; kill -9 $$ 1 -1")
    assert run(session, "ls").output == "kept\n"


@pytest.mark.parametrize(
    ("attempt", "outcome"),
    share(
        [
            ("cat /proc/1/environ", "Permission denied"),
            ("ls /proc/1/fd /proc/1/root", "Permission denied"),
            ("echo x > /proc/1/mem", "Permission denied"),
            ("touch /x", "Read-only file system"),
            ("touch /usr/x", "Read-only file system"),
            ("touch /dev/x", "Read-only file system"),
            ("touch /etc/passwd; chmod u+w /etc/passwd", "Read-only file system"),
            ("unshare -Ur true", "unshare failed"),
            ("mount -t tmpfs x /tmp", "must be superuse"),
            ("ls -d /work /srv /var", "No such file"),
            ("cat /etc/shadow", "No such file"),
            ("su -c id", "su"),
            ("echo > /dev/tcp/1.1.1.1/80", "Network is unreachable"),
            ("echo > /dev/tcp/example.com/80", "resolution"),
            ("head -c 40000000 /dev/zero > big", "No space left"),
            ("mknod disk b 8 0", "not permitted"),
        ],
        of=2,
    ),
)
def test_wall_holds(session: TerminalSession, attempt: str, outcome: str) -> None:
    ran = session.run(
        f"{{ {attempt}; }} 2>&1 | head -c 300; exit_code=${{PIPESTATUS[0]}}", seconds=10
    )
    assert outcome in ran.output
    assert run(session, "echo $exit_code").output != "0\n"


def test_sandbox_has_no_capability_and_no_new_privileges(session: TerminalSession) -> None:
    ran = run(session, "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; id -u; ls /sys")
    assert "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n1000\n" in ran.output
    assert "cannot access '/sys'" in ran.output


def test_host_processes_and_environment_are_invisible(
    session: TerminalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DRIVER", "x")
    with TerminalSession(limits=Limits(output_head=9000)).start() as other:
        assert (
            "SECRET"
            not in run(other, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'").output
        )
        assert int(run(other, "ls /proc | grep -c '^[0-9]'").output) < 10


def test_snapshot_holds_files_folders_and_links(session: TerminalSession) -> None:
    session.put({f"{HOME}/in/a.txt": Entry(data=b"1\n"), "/app/run": Entry(data=b"2", mode=0o755)})
    run(session, "mkdir ~/empty; ln -s /etc/passwd ~/link; mkfifo ~/pipe; chmod 0 ~/in/a.txt")
    found = session.snapshot()
    assert found == {
        f"{HOME}/empty": Entry(mode=0o755),
        f"{HOME}/in": Entry(mode=0o755),
        f"{HOME}/in/a.txt": Entry(data=b"1\n", mode=0),
        f"{HOME}/link": Entry(link="/etc/passwd"),
        f"{HOME}/pipe": Entry(mode=0o644, special=stat.S_IFIFO),
        "/app/run": Entry(data=b"2", mode=0o755),
    }


def test_snapshot_of_too_many_files_is_none() -> None:
    with TerminalSession(limits=Limits(snapshot_entries=10)).start() as session:
        run(session, "touch {1..11}")
        assert session.snapshot() is None


def test_read_only_file_cannot_be_changed() -> None:
    with TerminalSession(read_only={"/tests/test.sh": b"echo ok\n"}).start() as session:
        assert run(session, "bash /tests/test.sh").output == "ok\n"
        changed = run(
            session, "echo x > /tests/test.sh; rm /tests/test.sh; chmod 777 /tests/test.sh"
        )
        assert changed.code != 0
        assert run(session, "cat /tests/test.sh; touch /tests/new").output.startswith("echo ok\n")


def test_close_leaves_no_process() -> None:
    session = TerminalSession().start()
    run(session, "sleep 60 & disown")
    pids = processes_of(session)
    assert len(pids) >= 3
    session.close()
    session.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}/root").exists()]


def test_killed_sandbox_is_a_fault() -> None:
    session = TerminalSession().start()
    os.kill(processes_of(session)[1], signal.SIGKILL)
    with pytest.raises(EnvFault) as caught:
        run(session, "echo on")
    assert caught.value.kind is FaultKind.CRASHED
    session.close()


def test_stopped_sandbox_is_a_fault_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envkit_terminal.session._GRACE_SECONDS", 0.3)
    session = TerminalSession().start()
    pid = processes_of(session)[1]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EnvFault) as caught:
        run(session, "echo on", seconds=0.2)
    assert caught.value.kind is FaultKind.TIMEOUT
    os.kill(pid, signal.SIGCONT)
    session.close()


@pytest.mark.slow
def test_sandbox_ends_with_its_driver() -> None:
    driver = (
        "import time; from envkit_terminal import TerminalSession; s = TerminalSession().start(); "
        "s.run('sleep 600 & disown', seconds=5); print(s._process.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    outer = int(process.stdout.readline())
    inside = below(outer)
    assert len(inside) >= 4
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until_gone(inside) == []


@pytest.mark.slow
def test_sessions_killed_at_random_leave_nothing() -> None:
    seen = list[int]()
    for number in range(12):
        with TerminalSession().start() as session:
            pids = processes_of(session)
            seen += pids
            if number % 3 == 0:
                os.kill(pids[number % len(pids)], signal.SIGKILL)
            else:
                assert run(session, "echo on").output == "on\n"
    assert not [pid for pid in seen if Path(f"/proc/{pid}/root").exists()]


WRITE_ALL = (
    "import os, sys\n"
    "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
    "    for number in range(3, 64):\n"
    "        try:\n"
    "            pipe = os.open(f'/proc/{pid}/fd/{number}', os.O_WRONLY | os.O_NONBLOCK)\n"
    "            os.write(pipe, sys.argv[1].encode())\n"
    "        except OSError:\n"
    "            pass\n"
)


@pytest.fixture
def attacked() -> Iterator[TerminalSession]:
    with TerminalSession().start() as started:
        started.run(f"cat > write.py <<'END'\n{WRITE_ALL}END", seconds=10.0)
        yield started


ATTACKS = {
    "garbage": "python3 write.py 'no code\n'",
    "forged": "python3 write.py '0 /tmp\n'",
    "half a line": "python3 write.py '0'",
    "printf": "printf() { echo other; }",
    "eval": "eval() { echo other; }",
    "builtin": "builtin() { :; }",
    "builtins": "builtin() { :; }; printf() { :; }; eval() { :; }",
    "closed": "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- 10>&- 11>&-",
    "surrogates": "echo \ud800 \udcff",
    "stolen": "timeout 1 cat /proc/$$/fd/0",
}


@pytest.mark.parametrize("name", share(ATTACKS, of=3))
def test_commands_are_answered_after_an_attack_on_the_shell(
    attacked: TerminalSession, name: str
) -> None:
    attacked.run(ATTACKS[name], seconds=2.0)
    attacked.run("true", seconds=2.0)  # may still meet a shell that was tampered with
    assert attacked.run("echo on", seconds=5.0).output.endswith("on\n")


def outcome_of(attacked: TerminalSession, command: str) -> FinalState | None:
    """Run a command and return the final files as a grader gets them; None if too many."""
    attacked.run(f"rm write.py; {command}", seconds=20.0)
    files = attacked.snapshot()
    limits = Limits()
    return (
        None
        if files is None
        else FinalState(
            files=files, limits=limits, folders=(), folder=HOME, environment={}, test_seconds=9.0
        )
    )


def score(command: str, output: str, outcome: FinalState) -> float:
    """Grade what a command prints in a fresh sandbox."""
    task = {"checks": [{"type": "run", "command": command, "output": output}]}
    return grade(task, outcome, untouched=lambda: outcome).score


@pytest.mark.parametrize(
    ("command", "check", "output"),
    [
        ("mkdir -p a/b; echo hi > a/b/f; chmod 500 a/b a", "cat a/b/f; stat -c %a a", "hi\n500"),
        ("mkdir a; echo hi > a/f; chmod 000 a/f", "stat -c %a a/f", "0"),
        ("mkdir a; chmod 000 a", "stat -c %a a", "0"),
        ("mkdir a; ln -s a b; echo hi > b/f", "cat b/f; readlink b", "hi\na"),
        ("ln -s loop loop; mkfifo pipe", "ls", "loop\npipe"),
    ],
    ids=["read-only folders", "hidden file", "hidden folder", "link to a folder", "loop and FIFO"],
)
def test_final_files_of_any_kind_are_graded(
    attacked: TerminalSession, command: str, check: str, output: str
) -> None:
    outcome = outcome_of(attacked, command)
    assert outcome is not None
    assert score(check, output, outcome) == 1.0


@pytest.mark.parametrize(
    ("depth", "is_kept"), [(1500, True), (4500, False)], ids=["deep", "beyond any path"]
)
def test_folders_of_any_depth_can_be_read(
    attacked: TerminalSession, depth: int, is_kept: bool
) -> None:
    code = f'import os\\nfor _ in range({depth}): os.mkdir("d"); os.chdir("d")'
    outcome = outcome_of(attacked, f"python3 -c $'{code}'")
    assert (outcome is not None) is is_kept
    if outcome is not None:
        assert len(outcome.files) == depth
        assert score("echo x", "x", outcome) == 1.0
