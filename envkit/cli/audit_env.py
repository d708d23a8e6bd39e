"""`envkit audit-env`: what an environment pays a policy that does not solve it."""

from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from envkit.cli.console import note, say, say_json, table
from envkit.cli.counting import CountingBar
from envkit.cli.options import AsJson, EnvId, EnvKwargs, Seed, make_env, parse_env_kwargs
from envkit.errors import ConfigurationError, EnvkitError

if TYPE_CHECKING:
    from envkit.audit import AuditReport
    from envkit.env import Policy

_EXIT_INTERRUPTED: Final = 130
_SHOWN_DISAGREEMENTS: Final = 5
_COLUMNS: Final = ("policy", "mean", "error", "best", "paid", "episodes")


def audit_environment(
    env_id: EnvId,
    count: Annotated[int, typer.Option("-n", "--episodes", min=1, help="Of each policy.")] = 100,
    seed: Seed = 0,
    env_kwargs: EnvKwargs = None,
    max_reward: Annotated[
        float | None,
        typer.Option(help="Exit with 1 if a trivial policy's mean reward is above this."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Also play a policy of yours, such as a model that answers blindly; repeatable.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Play policies that solve nothing, and print the best reward that one of them gets.

    The exit code is 1 when it is above --max-reward, when two graders disagree, or when a reply
    makes the environment raise. Ctrl-C prints what was found so far.
    """
    from envkit.audit import Audit

    own = {name: _load(name) for name in policy or ()}
    env = make_env(env_id, parse_env_kwargs(env_kwargs))
    audit = Audit(env, episodes=count, seed=seed, policies=own)
    try:
        with CountingBar(f"auditing {env_id}", is_quiet=quiet) as bar:
            audit.run(bar.show)
    except KeyboardInterrupt:
        note("stopped; these are the figures so far")
    finally:
        env.close()
    report = audit.report()
    if as_json:
        say_json(report.to_json())
    else:
        _show(report)
    raise typer.Exit(_exit_code(report, max_reward))


def _load(place: str) -> "Policy":
    """Return the policy at `module:name`.

    Raises:
        ConfigurationError: There is none.
    """
    from pkgutil import resolve_name

    if not all(place.partition(":")):
        raise ConfigurationError(f"--policy takes MODULE:NAME, got {place!r}")
    try:
        found: Any = resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"no policy at {place!r}: {error}") from error
    if not callable(found):
        raise ConfigurationError(
            f"{place!r} must be a function of a PolicyContext that returns the reply, "
            f"got {type(found).__name__}"
        )
    return cast("Policy", found)


def _show(report: "AuditReport") -> None:
    table(_COLUMNS, report.rows())
    for entry in report.unplayed:
        say(f"not played: {entry.name}: {entry.reason}")
    for result in report.policies:
        if result.problem is not None:
            say(f"{result.name} made the environment raise: {result.problem}")
    if report.chance_level is not None:
        say(f"chance level, as the environment states it: {report.chance_level:.6g}")
    if report.compared_answers:
        say(f"graders disagree on {report.disagreement_count} of {report.compared_answers} answers")
    for entry in report.disagreements[:_SHOWN_DISAGREEMENTS]:
        say(
            f"  task {entry.task_index}: {entry.answer[:60]!r}: "
            f"{entry.grade:g} and {entry.second_grade:g}"
        )
    if (best := report.best) is not None:
        say(f"best mean reward without solving: {best.mean:.4f} ({best.name})")


def _exit_code(report: "AuditReport", max_reward: float | None) -> int:
    """Return the exit code.

    Raises:
        EnvkitError: Infrastructure failed every episode, so that nothing is known.
    """
    if not report.is_complete:
        return _EXIT_INTERRUPTED
    best = report.best
    problems = [result for result in report.policies if result.problem is not None]
    if best is None or best.mean is None:
        if problems:
            return 1
        raise EnvkitError(f"every episode of {report.env_id} faulted; nothing was measured")
    if max_reward is not None and best.mean > max_reward:
        note(f"{best.name} earns {best.mean:.4f}, above --max-reward {max_reward:g}")
        return 1
    return 1 if problems or report.disagreement_count else 0
