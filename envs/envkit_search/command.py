"""`envkit serve-search`: run a search server for environments on other machines."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from envkit.cli.command_options import CommandOptions, takes
from envkit.cli.console import note, say, say_access
from envkit.cli.counting import CountingBar
from envkit.cli.examples import with_examples
from envkit.cli.options import AllowRemote, NoKey, ServerKey, parse_env_kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchServerOptions(CommandOptions):
    """The options of `envkit serve-search`."""

    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="facts; world; a .jsonl file of documents; or the folder of an index.",
        ),
    ] = "world"
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 picks a free port.")] = 8000
    topk: Annotated[
        int, typer.Option(min=1, max=1000, help="Documents per query if the request sets no topk.")
    ] = 3
    index: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Search on disk with tantivy; builds the index if it does not exist.",
        ),
    ] = None
    corpus_options: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus-option",
            metavar="KEY=VALUE",
            help="Option of the world, such as seed=1; repeatable.",
        ),
    ] = None
    key: ServerKey = None
    no_key: NoKey = False
    allow_remote: AllowRemote = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False


@with_examples(
    "serve-search world --port 8000",
    "serve-search docs.jsonl --index docs.index --host 0.0.0.0",
)
@takes(SearchServerOptions)
def serve_search(given: SearchServerOptions) -> None:
    """Serve a corpus by Search-R1's POST /retrieve, until Ctrl-C.

    Environments use it with `backend="http://HOST:PORT"` and its key, which is random unless set by
    --key or the variable ENVKIT_SEARCH_KEY. GET /health reports that it is up.
    """
    from envkit.access import choose_access
    from envkit.serving import return_freed_answers
    from envkit_search.leases import SERVER_KEY_VARIABLE
    from envkit_search.opening import open_corpus
    from envkit_search.server import serve

    access = choose_access(
        given.key,
        host=given.host,
        variable=SERVER_KEY_VARIABLE,
        without_key=given.no_key,
        allow_remote=given.allow_remote,
    )
    options: dict[str, Any] = parse_env_kwargs(given.corpus_options, option="--corpus-option")
    with CountingBar(f"reading {given.corpus}", is_quiet=given.quiet) as bar:
        backend = open_corpus(given.corpus, options or None, index=given.index, progress=bar.show)

    def tell(address: str) -> None:
        say(f"serving {given.corpus} at {address}")
        say_access(access)
        note("Ctrl-C ends it")

    return_freed_answers()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            serve(backend, access=access, port=given.port, default_topk=given.topk, on_ready=tell)
        )
    note("ended")
