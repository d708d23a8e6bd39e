"""Output of commands: results on standard output, everything else on standard error.

Lines are plain, so paths can be copied and pipes get whole lines; `rich_console` draws only
progress and `envkit view`. All output goes through `printable`: text of models, environments and
servers must not move the cursor, rename the window or hide a line.
"""

import errno
import json
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final

import typer

from envkit.secrets import hidden

if TYPE_CHECKING:
    from envkit.access import Access

NO_READER: Final = (errno.EPIPE, errno.EIO)
"""What writing to a pipe, and to a terminal, says after the other end has gone."""
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the reading direction."""
_UNSEEN: Final = (*range(0x7F, 0xA0), *range(0xD800, 0xE000), *_DIRECTIONS)
_SHOWN: Final = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    **dict.fromkeys(_UNSEEN, "\N{REPLACEMENT CHARACTER}"),
}


def printable(text: str) -> str:
    """Return a text whose control characters are visible symbols; newline and tab stay."""
    return text.translate(_SHOWN)


def say(line: str = "") -> None:
    """Write a line of the result."""
    _write(printable(line), sys.stdout)


def note(line: str = "") -> None:
    """Write a line to standard error, without secrets."""
    _write(printable(hidden(line)), sys.stderr)


def _write(text: str, stream: IO[str]) -> None:
    """Write a line; if its reader is gone, as in `2>&1 | head`, drop it and go on."""
    try:
        typer.echo(text, stream)
    except OSError as error:
        if error.errno not in NO_READER:
            raise
        discard(stream)


def discard(stream: IO[str]) -> None:
    """Drop what was and will be written to a stream, since its reader is gone.

    Python flushes its streams again at the end, and would exit with status 120.
    """
    with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
        stream.flush()


def say_json(data: Any) -> None:  # noqa: ANN401  # any JSON data
    """Write the result as one JSON document, in ASCII."""
    text = json.dumps(data, indent=2, sort_keys=True, default=str)
    # JSON escapes every other control character.
    _write(text.replace("\x7f", "\\u007f"), sys.stdout)


def say_access(access: "Access") -> None:
    """Write a server's generated key, or a warning that it has none."""
    if access.is_made:
        say(f"key {access.key}")
    elif access.key is None:
        note("no key: every client that reaches the server has access")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table with aligned columns; without a header if the names are empty."""
    cells = [[" ".join(str(cell).splitlines()) for cell in row] for row in rows]
    lines = [list(columns), *cells] if any(columns) else cells
    widths = [max((len(line[n]) for line in lines), default=0) for n in range(len(columns))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say("  ".join(padded).rstrip())


def one_line(error: BaseException) -> str:
    """Return an error's message and its notes on one line."""
    parts = [str(error) or type(error).__name__, *getattr(error, "__notes__", ())]
    return " ".join("; ".join(parts).split())


def note_traceback(error: BaseException) -> None:
    """Write an error's traceback as the interpreter would."""
    note("".join(traceback.format_exception(error)).rstrip())


def make_standard_error_printable() -> None:
    """Pass warnings, log lines and thread errors through `printable` too, without secrets.

    Characters that a stream cannot encode are escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a replaced stream may lack it
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    as_warning = warnings.formatwarning

    def printable_warning(*args: Any, **kwargs: Any) -> str:  # noqa: ANN401  # as the original
        return printable(hidden(as_warning(*args, **kwargs)))

    warnings.formatwarning = printable_warning
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableFormatter())
    threading.excepthook = _note_thread_error
    sys.unraisablehook = _note_unraisable


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(hidden(super().format(record)))


def _note_thread_error(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
        note(f"Exception in thread {failed.thread.name if failed.thread else '?'}:")
        note_traceback(failed.exc_value)


def _note_unraisable(failed: "sys.UnraisableHookArgs") -> None:
    note(f"{failed.err_msg or 'Exception ignored in'}: {failed.object!r}")
    if failed.exc_value is not None:
        note_traceback(failed.exc_value)
