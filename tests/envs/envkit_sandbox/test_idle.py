"""Waiting until processes have nothing left to do."""

import subprocess
from pathlib import Path

from envkit_sandbox.idle import await_idle


def test_a_process_that_waits_is_idle() -> None:
    with subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE) as one:
        assert await_idle([one.pid], 60.0)
        one.communicate(b"\n")


def test_a_process_that_was_sent_something_is_not_idle_before_it_is_done(tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = f"""read line
i=0
while [ $i -lt 100000 ]; do i=$((i + 1)); done
echo done > {done}
read line"""
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE) as one:
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.flush()
        assert await_idle([one.pid], 60.0)
        assert done.read_text() == "done\n"
        one.communicate(b"\n")


def test_a_process_that_never_rests_is_not_idle() -> None:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as one:
        assert not await_idle([one.pid], 0.2)
        one.kill()


def test_a_process_that_is_gone_is_idle() -> None:
    with subprocess.Popen(["true"]) as one:
        one.wait()
    assert await_idle([one.pid], 60.0)
