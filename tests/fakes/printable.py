"""A command that fails with hostile text in every way that Python reports."""

import logging
import threading
import warnings

HOSTILE = "\x1b]0;renamed\x07\x9b31m\r\b\u202e\ud83d"


def _fail_here() -> None:
    raise ValueError(f"in a thread {HOSTILE}")


def fail() -> None:
    """Fail."""
    warnings.warn(f"warned {HOSTILE}", stacklevel=1)
    logging.getLogger("some.library").error("logged %s", HOSTILE)
    thread = threading.Thread(target=_fail_here)
    thread.start()
    thread.join()
    error = ValueError(f"raised {HOSTILE}")
    error.add_note(f"noted {HOSTILE}")
    raise error
