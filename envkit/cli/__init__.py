"""The `envkit` command.

Importing this package imports no command and no foreign library; `main` does.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    import typer

# Read by OpenMP and the tokenizers when they are loaded: threads that spin while they wait starve
# each other on a busy machine, and one thread costs decoding almost nothing. A user's own values
# win. On a CPU the embedded engine is the only one of our processes that computes with torch.
_THREAD_DEFAULTS: Final = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


_STREAMS: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def _open_missing_streams() -> None:
    """Replace standard streams that the caller closed, as in `envkit list >&-`."""
    for name, mode in _STREAMS.items():
        # The first file that a command opens would take the descriptor of a closed one.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open to the end


def _load_app() -> "typer.Typer":
    """Import the commands, which takes seconds on a busy machine."""
    handler = signal.getsignal(signal.SIGINT)
    is_default = handler is signal.default_int_handler  # a shell's background job ignores it
    if is_default:
        # An exception cannot end it cleanly: an extension module that is interrupted while it loads
        # turns KeyboardInterrupt into an ImportError.
        signal.signal(signal.SIGINT, _leave)
    from envkit.cli.app import app

    if is_default:
        signal.signal(signal.SIGINT, handler)
    return app


def _leave(number: int, frame: object) -> NoReturn:
    del frame
    os.write(2, b"envkit: interrupted\n" if number == signal.SIGINT else b"envkit: terminated\n")
    os._exit(128 + number)


def _unwritten() -> OSError | None:
    """Flush standard output; return the error, which Python would otherwise report at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # `envkit ... | head`
        return None
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open to the end
        return error
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status; the entry point of the console script.

    Args:
        arguments: The arguments; None uses those of the process.
    """
    # A container's first process ignores a signal without a handler (pid_namespaces(7)). An
    # exception would end neither an import nor a model that loads. While a rollout plays, it has
    # its own handlers.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)
    for name, value in _THREAD_DEFAULTS.items():
        os.environ.setdefault(name, value)
    _open_missing_streams()
    app = _load_app()
    from envkit.cli.app import EXIT_ERROR
    from envkit.cli.console import make_standard_error_printable, note, note_traceback

    make_standard_error_printable()
    try:
        app(args=None if arguments is None else list(arguments), prog_name="envkit")
    except Exception as error:
        note_traceback(error)
        raise SystemExit(EXIT_ERROR) from error
    except SystemExit as end:
        error = _unwritten()
        if error is not None and not end.code:
            note(f"envkit: error: cannot write the output: {error.strerror or error}")
            raise SystemExit(EXIT_ERROR) from error
        raise
