"""`envkit certify`: check that an environment is fit for training."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from envkit.cli.command_options import CommandOptions, takes
from envkit.cli.console import note, say, say_json, table
from envkit.cli.examples import with_examples
from envkit.cli.options import AsJson, EnvKwargs, Seed, complete_id, parse_env_kwargs

if TYPE_CHECKING:
    from envkit_certify.lines import CertifyReport

_EXIT_INTERRUPTED: Final = 130
_SHOWN: Final = 5
_COLUMNS: Final = ("line", "verdict", "number", "of what")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyOptions(CommandOptions):
    """The options of `envkit certify`."""

    target: Annotated[
        str,
        typer.Argument(
            metavar="ID|MODULE:CLASS|FILE.py:CLASS",
            help="An environment id, or a class, registered or not.",
            autocompletion=complete_id,
        ),
    ]
    count: Annotated[int, typer.Option("-n", "--episodes", min=2, help="Episodes per policy.")] = 40
    seed: Seed = 0
    env_kwargs: EnvKwargs = None
    max_blind: Annotated[
        float,
        typer.Option(
            min=0.0, help="Maximum return of a blind policy, as a fraction of the oracle's return."
        ),
    ] = 0.05
    only: Annotated[
        list[str] | None, typer.Option(metavar="LINE", help="Only this line; repeatable.")
    ] = None
    golden: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A recording of `envkit golden` to replay; repeatable "
            "(default: tests/golden/ID.json if it exists).",
        ),
    ] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Also play this policy, such as a model that answers without images; repeatable.",
        ),
    ] = None
    limit: Annotated[
        float,
        typer.Option("--time-limit", metavar="SECONDS", help="Time limit per line."),
    ] = 300.0
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the report: JSON if FILE ends in .json, else HTML.",
        ),
    ] = None
    as_json: AsJson = False


@with_examples(
    "certify geo3k-v0 --out report.html",
    "certify my_env.py:MyEnv -n 20",
    "certify canary-v0 --only leaks --json",
    group="Write an environment",
)
@takes(CertifyOptions)
def certify(given: CertifyOptions) -> None:
    """Certify an environment: contract, determinism, exploits, leaks, recordings, speed.

    The exit code is 1 if a line fails or cannot run. Ctrl-C prints the results so far.
    """
    from envkit.files import replace_file, storage_errors
    from envkit_certify.certified import Plan
    from envkit_certify.page import write_page
    from envkit_certify.run import Certification
    from envkit_certify.worker import LINES

    plan = Plan(
        target=given.target,
        kwargs=parse_env_kwargs(given.env_kwargs),
        episodes=given.count,
        seed=given.seed,
        max_blind=given.max_blind,
        golden=list(map(str, given.golden or ())),
        policies=given.policy or (),
    )
    run, out = Certification(plan, lines=given.only or LINES, limit_s=given.limit), given.out
    try:
        run.run(None if given.as_json else lambda line: note(f"{line.name}: {line.verdict.value}"))
    except KeyboardInterrupt:
        note("stopped; results so far:")
    report = run.report()
    if out is not None:
        with storage_errors(f"cannot write {out}"):
            out.parent.mkdir(parents=True, exist_ok=True)
    if out is not None and out.suffix == ".json":
        replace_file(out, json.dumps(report.to_json(), indent=2).encode() + b"\n")
    elif out is not None:
        write_page(report, out)
    if given.as_json:
        say_json(report.to_json())
    else:
        _show(report)
    if not report.is_complete:
        raise typer.Exit(_EXIT_INTERRUPTED)
    raise typer.Exit(0 if report.passed else 1)


def _show(report: "CertifyReport") -> None:
    table(_COLUMNS, report.rows())
    for line in report.failed:
        for problem in line.evidence[:_SHOWN]:
            say(f"{line.name}: {problem}")
        if len(line.evidence) > _SHOWN:
            say(f"{line.name}: and {len(line.evidence) - _SHOWN} more; --json has them all")
    for reason in dict.fromkeys(reason for line in report.not_run for reason in line.evidence):
        say(f"not run: {reason}")
    say(f"{report.target}: {report.summary}")
