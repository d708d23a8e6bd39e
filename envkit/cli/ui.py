"""`envkit ui`: the viewer for all runs of a folder, live while they run."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from envkit.cli.console import note, say
from envkit.cli.run_plan import RUNS
from envkit.cli.stored import TokenModel, tokenizer
from envkit.files import storage_errors


def ui(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Show the runs in this folder (default: runs/)."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 uses any free one.")
    ] = 8420,
    model: TokenModel = None,
    notes: Annotated[
        bool,
        typer.Option(
            "--notes",
            help="Let the pages change notes and tags of runs (notes.json in each run's folder).",
        ),
    ] = False,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Only print the URL; do not open a browser.")
    ] = False,
) -> None:
    """Browse all runs of a folder in the browser, live while they run, until Ctrl-C.

    The server is reachable only from this machine, and only with the key in the printed URL.
    """
    import asyncio
    import contextlib
    import secrets
    import webbrowser

    from envkit.viewer.folder import Folder
    from envkit.viewer.library import Library
    from envkit.viewer.server import serve

    shown = folder or (Path(RUNS) if Path(RUNS).is_dir() else Path())
    if shown.exists():
        with storage_errors(f"cannot show {shown}"):
            os.listdir(shown)
    library = Library(Folder(shown), token_text=tokenizer(model), takes_notes=notes)
    library.step()
    if library.is_empty:
        note(f"{shown} has no runs yet; they appear when a rollout starts")

    def tell(address: str) -> None:
        say(address)
        note("press Ctrl-C to stop")
        if not no_open and _has_screen():
            webbrowser.open(address)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(library, key=secrets.token_urlsafe(24), port=port, on_ready=tell))
    note("stopped")


def _has_screen() -> bool:
    """Whether a browser can open a window; a text browser would take over the terminal."""
    is_known = sys.platform in ("darwin", "win32")
    return is_known or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
