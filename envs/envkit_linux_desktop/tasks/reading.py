"""Read untrusted documents in a process with limits."""

import json
import sys
from pathlib import Path
from typing import Any, Final

from envkit_sandbox.limited import run_limited

_READER: Final = Path(__file__).with_name("reader.py")


def read_document(kind: str, data: bytes) -> Any:  # noqa: ANN401  # plain JSON data
    """Return a document's model, or None if it is broken.

    Args:
        kind: "xlsx", "docx", "archive" or "xfconf".
        data: The file's bytes, which nobody has checked.

    Raises:
        UngradedError: The reader itself failed.
        EnvFault: It hung or was killed, which says nothing about the document.
    """
    program = [sys.executable, "-I", str(_READER), kind]
    answer = run_limited(program, data, what=f"the reader of {kind} documents")
    return None if answer is None else json.loads(answer).get("model")
