"""Read untrusted documents in a process with limits."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_READER: Final = Path(__file__).with_name("reader.py")
_DEADLINE: Final = 300.0
"""Seconds until the reader counts as hung; its own limit is 20 seconds of processor time."""
_ENDED: Final = (signal.SIGXCPU, signal.SIGSEGV, signal.SIGABRT)
"""Signals by which a document ends its reader: the limit of time, and crashes of a parser."""


def read_document(kind: str, data: bytes) -> Any:  # noqa: ANN401  # plain JSON data
    """Return a document's model, or None if it is broken.

    Args:
        kind: "xlsx", "docx", "archive" or "xfconf".
        data: The file's bytes, which nobody has checked.

    Raises:
        RuntimeError: The reader itself failed, which says nothing about the document.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_READER), kind],
            input=data,
            capture_output=True,
            timeout=_DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"the reader of {kind} documents did not end within {_DEADLINE:.0f} seconds; "
            "is the machine out of processor time?"
        ) from None
    if -done.returncode in _ENDED:
        return None
    if done.returncode != 0:
        raise RuntimeError(
            f"the reader of {kind} documents failed: {done.stderr.decode(errors='replace')[-500:]}"
        )
    return json.loads(done.stdout).get("model")
