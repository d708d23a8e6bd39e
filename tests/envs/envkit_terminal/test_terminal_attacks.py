"""Whatever a policy does in its shell, the session goes on and the final files are graded."""

from collections.abc import Iterator

import pytest
from fakes.needs import BUBBLEWRAP

from envkit_terminal.grader_sandbox import Outcome
from envkit_terminal.grading import grade
from envkit_terminal.session import HOME, Limits, TerminalSession

pytestmark = BUBBLEWRAP.mark

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
def session() -> Iterator[TerminalSession]:
    with TerminalSession().start() as started:
        started.run(f"cat > write.py <<'END'\n{WRITE_ALL}END", seconds=10.0)
        yield started


@pytest.mark.parametrize(
    "command",
    [
        "python3 write.py 'no code\n'",
        "python3 write.py '0 /tmp\n'",
        "python3 write.py '0'",
        "printf() { echo other; }",
        "eval() { echo other; }",
        "builtin() { :; }",
        "builtin() { :; }; printf() { :; }; eval() { :; }",
        "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- 10>&- 11>&-",
        "echo \ud800 \udcff",
        "timeout 1 cat /proc/$$/fd/0",
    ],
    ids=[
        "garbage",
        "forged",
        "half a line",
        "printf",
        "eval",
        "builtin",
        "builtins",
        "closed",
        "surrogates",
        "stolen",
    ],
)
def test_commands_are_answered_after_an_attack_on_the_shell(
    session: TerminalSession, command: str
) -> None:
    session.run(command, seconds=2.0)
    session.run("true", seconds=2.0)  # may still meet a shell that was tampered with
    assert session.run("echo on", seconds=5.0).output.endswith("on\n")


def outcome_of(session: TerminalSession, command: str) -> Outcome | None:
    """Run a command and return the final files as a grader gets them; None if too many."""
    session.run(f"rm write.py; {command}", seconds=20.0)
    files = session.snapshot()
    limits = Limits()
    return (
        None
        if files is None
        else Outcome(
            files=files, limits=limits, folders=(), folder=HOME, environment={}, test_seconds=9.0
        )
    )


def score(command: str, output: str, outcome: Outcome) -> float:
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
    session: TerminalSession, command: str, check: str, output: str
) -> None:
    outcome = outcome_of(session, command)
    assert outcome is not None
    assert score(check, output, outcome) == 1.0


@pytest.mark.parametrize(
    ("depth", "is_kept"), [(1500, True), (4500, False)], ids=["deep", "beyond any path"]
)
def test_folders_of_any_depth_can_be_read(
    session: TerminalSession, depth: int, is_kept: bool
) -> None:
    code = f'import os\\nfor _ in range({depth}): os.mkdir("d"); os.chdir("d")'
    outcome = outcome_of(session, f"python3 -c $'{code}'")
    assert (outcome is not None) is is_kept
    if outcome is not None:
        assert len(outcome.files) == depth
        assert score("echo x", "x", outcome) == 1.0
