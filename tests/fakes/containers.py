"""Stand-ins for containers: a command in a process that is refused what containers refuse."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ONE_USER: Final = ("unshare", "--user", "--map-root-user")
"""Root in a user namespace with one user, as enroot makes it."""
NO_PTRACE: Final = ("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace")
"""Root without a capability that containers do not give it."""
NO_SWITCH: Final = ("setpriv", "--bounding-set", "-setuid", "--inh-caps", "-setuid")
"""Root that cannot become another user."""
NO_NAMESPACES: Final = (
    sys.executable,
    "-c",
    "import os, pyseccomp as s, sys\n"
    "rules = s.SyscallFilter(s.ALLOW)\n"
    "rules.add_rule(s.ERRNO(1), 'unshare')\n"
    "rules.add_rule(s.ERRNO(1), 'clone', s.Arg(0, s.MASKED_EQ, 1 << 28, 1 << 28))\n"
    "rules.add_rule(s.ERRNO(38), 'clone3')\n"
    "rules.load()\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
"""No user namespaces, as under the seccomp profile of Docker."""


def small_memory(mib: int) -> tuple[str, ...]:
    """Return the start of a command whose `/dev/shm` has this size."""
    script = f'mount -t tmpfs -o size={mib}m,mode=1777 none /dev/shm && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")


def python_inside(
    prefix: Sequence[str], code: str, *words: object
) -> "subprocess.CompletedProcess[str]":
    """Run Python code in a new process, begun as the prefix says."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def envkit_inside(prefix: Sequence[str], *words: object) -> "subprocess.CompletedProcess[str]":
    """Run a command of envkit in such a process."""
    return python_inside(
        prefix, "import sys\nfrom envkit.cli import main\nmain(sys.argv[1:])", *words
    )


def opened(folder: Path) -> int:
    """Return a descriptor of a folder, as a sandbox sends it."""
    return os.open(folder, os.O_PATH | os.O_DIRECTORY)
