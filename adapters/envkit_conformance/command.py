"""`envkit conformance`: check trainers' adapters with recorded trajectories, token for token."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envkit.cli.console import note, say, say_json, table
from envkit.cli.examples import with_examples
from envkit.cli.options import AsJson

if TYPE_CHECKING:
    from envkit_conformance import Adapter, ConformanceLine, Recording


@with_examples(
    "conformance",
    "conformance --adapter trl --recordings runs/oracle --model DIR",
    group="Train",
)
def conformance(
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter", metavar="NAME", help="Only this adapter; repeatable (default: all)."
        ),
    ] = None,
    recordings: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Use this run directory instead of envkit's own recordings."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR_OR_NAME",
            help="Model of --recordings, whose image processor computes the tensors to compare.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what adapters pass to trainers with the recorded ids, masks and rewards.

    The exit code is 1 when a row differs, or when a named adapter is not installed.
    """
    from envkit_conformance import ConformanceResult, load_adapters, run_suite

    found = load_adapters(adapter or ())
    chosen = _recordings(recordings, model)
    outcomes = run_suite([one for entry in found for one in entry.members], chosen)
    missing = _missing(found, outcomes)
    checked = [one for one in outcomes if one.verdict is not ConformanceResult.NOT_INSTALLED]
    if as_json:
        say_json(_as_json(outcomes, missing))
    else:
        _show(checked, chosen, missing)
    failed = any(one.verdict is ConformanceResult.FAIL for one in checked)
    if failed or (adapter and missing):
        raise typer.Exit(1)


def _recordings(directory: Path | None, model: str | None) -> "tuple[Recording, ...]":
    from envkit.errors import ConfigurationError
    from envkit_conformance import load_recordings, shipped_recordings

    if directory is None:
        if model is not None:
            raise ConfigurationError(
                "--model needs --recordings DIR: envkit's own recordings use no model"
            )
        return shipped_recordings()
    process = None
    if model is not None:
        from envkit.tokens import load_codec

        process = load_codec(model).image_features
    found = load_recordings(directory, process=process)
    if not all(one.has_features for one in found):
        note("image tensors are not compared: add --model with the model of these recordings")
    return found


def _missing(
    adapters: "tuple[Adapter, ...]", outcomes: "tuple[ConformanceLine, ...]"
) -> dict[str, str]:
    """Return missing packages by the name of the adapter or projection."""
    from envkit_conformance import ConformanceResult

    absent = {entry.name: entry.missing for entry in adapters if entry.missing is not None}
    for one in outcomes:
        if one.verdict is ConformanceResult.NOT_INSTALLED:
            absent.setdefault(one.projection, one.message)
    return absent


def _show(
    outcomes: "list[ConformanceLine]", recordings: "tuple[Recording, ...]", missing: dict[str, str]
) -> None:
    from envkit_conformance import ConformanceResult

    names = list(dict.fromkeys(one.projection for one in outcomes))
    cells = {(one.recording, one.projection): one.verdict for one in outcomes}
    rows = [
        (one.name, *(_cell(cells.get((one.name, name))) for name in names)) for one in recordings
    ]
    table(("recording", *names), rows)
    for one in outcomes:
        if one.verdict is ConformanceResult.FAIL:
            say(str(one))
    for name, reason in missing.items():
        say(f"{name}: not installed ({reason})")
    passed, refused, failed = (
        sum(one.verdict is found for one in outcomes)
        for found in (ConformanceResult.PASS, ConformanceResult.REFUSED, ConformanceResult.FAIL)
    )
    say(
        f"{len(outcomes)} deliveries: {passed} passed, {refused} refused as declared, "
        f"{failed} failed"
    )


def _cell(verdict: str | None) -> str:
    return "-" if verdict is None else "FAIL" if verdict == "fail" else str(verdict)


def _as_json(outcomes: "tuple[ConformanceLine, ...]", missing: dict[str, str]) -> dict[str, object]:
    return {
        "outcomes": [asdict(one) for one in outcomes],
        "not_installed": missing,
    }
