"""Pass untrusted bytes to a program that limits its own memory and processor time."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from envkit.errors import EnvFault, FaultKind
from envkit.grading import UngradedError

_DEADLINE: Final = 300.0
"""Seconds until the program counts as hung; its own CPU limit is far lower."""
_ENDED: Final = (signal.SIGXCPU, signal.SIGSEGV, signal.SIGABRT)
"""Signals by which the bytes end a program: its limit of time, and crashes of a parser. SIGKILL is
not among them: a machine without memory sends it, whatever the bytes are."""


def run_limited(
    program: Sequence[str], data: bytes, *, what: str, environment: Mapping[str, str] | None = None
) -> bytes | None:
    """Return a program's output for its input; None if the input killed it.

    Args:
        program: Its command line.
        data: Its standard input.
        what: What it does, for messages.
        environment: Its variables; None inherits them.

    Raises:
        UngradedError: It failed; its input may be why.
        EnvFault: It hung or was killed, which its own limits rule out as its input's doing
            (`GRADER`).
    """
    try:
        done = subprocess.run(
            program,
            input=data,
            capture_output=True,
            timeout=_DEADLINE,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise EnvFault(
            f"{what} did not end within {_DEADLINE:.0f} seconds; "
            "is the machine out of processor time?",
            kind=FaultKind.GRADER,
        ) from None
    if -done.returncode in _ENDED:
        return None
    if -done.returncode == signal.SIGKILL:
        raise EnvFault(f"{what} was killed; is the machine out of memory?", kind=FaultKind.GRADER)
    if done.returncode != 0:
        raise UngradedError(f"{what} failed: {done.stderr.decode(errors='replace')[-300:]}")
    return done.stdout
