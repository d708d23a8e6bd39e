"""Play the runs of an `EvalPlan` one after another and write their figures."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from envkit.cli.console import note, one_line, say, say_json
from envkit.cli.engines import policy_of
from envkit.cli.options import make_env
from envkit.cli.run_plan import Output, RolloutPlan, is_taken
from envkit.cli.run_rollout import EXIT_ALL_FAULTED, EXIT_ERROR, EXIT_OK, run_rollout
from envkit.errors import EnvkitError, RunFailedError
from envkit.rollout.run_folder import RunFolder
from envkit.trajectory import Trajectory
from envkit_eval import Line, Sample, check_pass_at, lines_of
from envkit_eval.plan import EVAL_FILE, EvalPlan
from envkit_eval.table import show_lines

_SIGNALLED: Final = 128
"""Exit codes above this are from signals."""


def run_eval(plan: EvalPlan, *, output: Output) -> int:
    """Play the plan and return the exit code. The figures so far are always written.

    If all episodes of a run fail alike, only that run ends; any other error ends the evaluation.

    Raises:
        EnvkitError: The error that ended the evaluation; finished episodes are kept.
    """
    if plan.runs and not any(run.is_resumed for run in plan.runs.values()):
        _check_environments(plan)
    plan.write()
    samples: list[Sample] = []
    codes, error = _play_all(plan, samples)
    if error is not None and not samples and not _has_runs(plan):
        _remove_empty(plan)
        raise error
    is_complete = error is None and len(codes) == len(plan.runs) and max(codes) <= _SIGNALLED
    lines = _figures(plan, samples)
    document = plan.write(lines, is_complete=is_complete)
    if output is Output.JSON:
        say_json(document)
    elif lines:
        show_lines(lines)
        say(str(plan.folder / EVAL_FILE))
    if not is_complete:
        note(f"complete the evaluation with: envkit eval --resume {plan.folder}")
    if error is not None:
        raise error
    return _exit_code(plan, lines, codes)


def _has_runs(plan: EvalPlan) -> bool:
    return any(run.is_resumed or is_taken(plan.folder / name) for name, run in plan.runs.items())


def _remove_empty(plan: EvalPlan) -> None:
    """Remove the folder of an evaluation that could not start."""
    with suppress(OSError):
        (plan.folder / EVAL_FILE).unlink()
        plan.folder.rmdir()  # fails for a non-empty folder


def _play_all(plan: EvalPlan, samples: list[Sample]) -> tuple[list[int], EnvkitError | None]:
    """Play the runs in order; return their exit codes, and the error that ended the rest."""
    codes: list[int] = []
    for name, run in plan.runs.items():
        if not run.is_quiet and len(plan.runs) > 1:
            note(f"{name} ({len(codes) + 1} of {len(plan.runs)})")
        take = partial(_take, plan, samples)
        try:
            codes.append(EXIT_OK if _read_complete(run, take) else run_rollout(run, also=take))
        except RunFailedError as failure:
            note(f"{name}: {one_line(failure)}")
            codes.append(EXIT_ERROR)
        except EnvkitError as error:
            return codes, error
        if codes[-1] > _SIGNALLED:
            break
    return codes, None


def _check_environments(plan: EvalPlan) -> None:
    """Build every environment once, so that the last one does not fail after hours."""
    if len(plan.runs) == 1:  # the run builds it first anyway
        return
    for run in plan.runs.values():
        env = make_env(run.env_id, dict(run.config.env_kwargs))
        try:
            if run.choice.policy is not None:
                policy_of(env, run.choice.policy)
        except EnvkitError as error:
            error.add_note(f"environment: {run.env_id}")
            raise
        finally:
            env.close()


def _read_complete(run: RolloutPlan, take: Callable[[Trajectory], None]) -> bool:
    """Add the episodes of a complete run; return whether the run is complete."""
    if not run.is_resumed or run.out is None:
        return False
    with RunFolder.resume(run.out) as folder:
        if len(folder.progress.delivered) < run.episodes:
            return False
        for trajectory in folder.finished():
            take(trajectory)
    return True


def _take(plan: EvalPlan, samples: list[Sample], trajectory: Trajectory) -> None:
    counting = plan.counting
    samples.append(Sample.of(trajectory, by=counting.by, solved_above=counting.solved_above))


def _figures(plan: EvalPlan, samples: Sequence[Sample]) -> list[Line]:
    counting = plan.counting
    size = next(iter(plan.runs.values())).group_size
    pass_at = check_pass_at(counting.pass_at, size)
    return lines_of(samples, by=counting.by, pass_at=pass_at, price=counting.price)


def _exit_code(plan: EvalPlan, lines: Sequence[Line], codes: Sequence[int]) -> int:
    worst = max(codes, default=EXIT_ERROR)
    if worst > _SIGNALLED:
        return worst
    most = plan.counting.max_faults
    for line in lines:
        if line.tag is None and line.fault_share > most:
            note(
                f"{line.env_id}: {line.faulted} of {line.faulted + line.episodes} episodes "
                f"faulted, more than --max-faults {most:g} allows; the remaining tasks may not be "
                "representative"
            )
            worst = max(worst, EXIT_ERROR)
    if codes and all(code == EXIT_ALL_FAULTED for code in codes):
        return EXIT_ALL_FAULTED
    return EXIT_ERROR if worst != EXIT_OK else EXIT_OK
