"""Play the runs of an `EvalPlan` one after another and write their figures."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, cast

from envkit.cli.console import note, one_line, say, say_json, table
from envkit.cli.engines import policy_of
from envkit.cli.options import make_env
from envkit.cli.run_plan import Output, RolloutPlan
from envkit.cli.run_rollout import EXIT_ALL_FAULTED, EXIT_ERROR, EXIT_OK, run_rollout
from envkit.env import Env
from envkit.errors import EnvkitError, RunFailedError
from envkit.metrics import Aggregator, health_line
from envkit.rollout.run_folder import RunFolder, is_taken
from envkit.success import HOW_TO_DECLARE, UNDECLARED
from envkit.trajectory import Trajectory
from envkit.viewer.documents import EVAL_FILE
from envkit_eval import Estimate, EvalRow, Sample, check_pass_at, lines_of
from envkit_eval.figures import with_interval
from envkit_eval.paired import PairedEpisode
from envkit_eval.plan import EvalPlan
from envkit_eval.variants import compare_variants, labels_of, show_variants

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
    played = _Played(plan)
    codes, error = _play_all(played)
    if error is not None and not played.samples and not (plan.is_resumed or _has_runs(plan)):
        _remove_empty(plan)
        raise error
    is_whole = error is None and not played.is_cut and len(codes) == len(plan.runs)
    is_complete = is_whole and max(codes) <= _SIGNALLED
    lines = _figures(plan, played.samples)
    compared, refused = compare_variants(plan.runs, played.episodes) if is_complete else ([], [])
    document = plan.write(lines, compared, is_complete=is_complete)
    if output is Output.JSON:
        say_json(document)
    elif lines:
        say(health_line(played.health.result()))
        _show_lines(lines)
        show_variants(compared)
        say(str(plan.folder / EVAL_FILE))
    if compared and output is not Output.JSON:
        note(f"draw the variants with: envkit report {plan.folder}")
    for reason in refused:
        note(reason)
    if not is_complete:
        more = plan.resume_options()
        note(f"complete the evaluation with: envkit eval --resume {plan.folder}{more}")
    if error is not None:
        raise error
    code = _exit_code(plan, lines, codes)
    return EXIT_ERROR if refused and code == EXIT_OK else code


def _has_runs(plan: EvalPlan) -> bool:
    return any(run.is_resumed or is_taken(plan.folder / name) for name, run in plan.runs.items())


def _remove_empty(plan: EvalPlan) -> None:
    """Remove the folder of an evaluation that could not start."""
    with suppress(OSError):
        (plan.folder / EVAL_FILE).unlink()
        plan.folder.rmdir()  # fails for a non-empty folder


class _Played:
    """What the figures need of the episodes played so far."""

    def __init__(self, plan: EvalPlan) -> None:
        self.plan = plan
        self.samples: list[Sample] = []
        self.health = Aggregator()
        self.is_cut = False
        """Whether a run stopped itself before its last episode."""
        self._labels = labels_of(plan.runs)
        self.episodes: dict[str, list[PairedEpisode]] = {name: [] for name in self._labels}
        """Those of the variants, by the folder of their run."""

    def take(self, name: str, trajectory: Trajectory) -> None:
        """Add an episode of a run."""
        self.health.add(trajectory)
        counting = self.plan.counting
        threshold = counting.reward_threshold
        sample = Sample.of(trajectory, by=counting.by, threshold=threshold)
        if (label := self._labels.get(name)) is not None:
            sample = replace(sample, env_id=label)
            variant = self.episodes[name]
            number = len(variant) + 1
            variant.append(
                PairedEpisode.of(trajectory, number=number, run=name, threshold=threshold)
            )
        self.samples.append(sample)


def _play_all(played: _Played) -> tuple[list[int], EnvkitError | None]:
    """Play the runs in order; return their exit codes, and the error that ended the rest."""
    codes: list[int] = []
    plan = played.plan
    for name, run in plan.runs.items():
        if not run.is_quiet and len(plan.runs) > 1:
            note(f"{name} ({len(codes) + 1} of {len(plan.runs)})")
        take = partial(played.take, name)
        try:
            codes.append(EXIT_OK if _read_complete(run, take) else run_rollout(run, also=take))
        except RunFailedError as failure:
            note(f"{name}: {one_line(failure)}")
            codes.append(EXIT_ERROR)
            played.is_cut = True
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
        source = run.environment()
        arguments = dict(run.config.env_kwargs)
        env = make_env(source, arguments) if isinstance(source, str) else source()
        try:
            if run.choice.policy is not None:
                policy_of(cast(Env, env.unwrapped), run.choice.policy)
        except EnvkitError as error:
            error.add_note(f"environment: {run.env_id}")
            raise
        finally:
            env.close()


def _read_complete(run: RolloutPlan, take: Callable[[Trajectory], None]) -> bool:
    """Add the episodes of a complete run; return whether the run is complete."""
    if not run.is_resumed or run.out is None:
        return False
    with RunFolder.resume(run.out, retry_faults=run.retry_faults) as folder:
        if folder.progress.retried:
            note(f"{run.out}: {folder.progress.retried} faulted episodes play again")
        if len(folder.progress.delivered) < run.to_play:
            return False
        for trajectory in folder.finished():
            take(trajectory)
    return True


def _figures(plan: EvalPlan, samples: Sequence[Sample]) -> list[EvalRow]:
    counting = plan.counting
    size = next(iter(plan.runs.values())).run.group_size
    pass_at = check_pass_at(counting.pass_at, size)
    return lines_of(samples, by=counting.by, pass_at=pass_at, price=counting.price)


def _exit_code(plan: EvalPlan, lines: Sequence[EvalRow], codes: Sequence[int]) -> int:
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


def _show_lines(lines: Sequence[EvalRow]) -> None:
    """Write the table: a row per environment, followed by its roles and tags."""
    ks = sorted({k for line in lines for k in line.pass_at if k > 1})
    has_cost = any(line.cost is not None for line in lines)
    has_images = any(line.images for line in lines)
    columns = ["", "tasks", "episodes", "success", "reward", *(f"pass@{k}" for k in ks)]
    columns += [f"pass^{k}" for k in ks]
    columns += ["turns", "tokens in", "out", *(["images"] if has_images else []), "seconds"]
    columns += [*(["dollars"] if has_cost else []), "faults"]
    table(columns, [_row(line, ks, has_images=has_images, has_cost=has_cost) for line in lines])
    if has_cost:
        total = sum(line.cost or 0.0 for line in lines if line.tag is None)
        say(f"cost: {_dollars(total)} in total")
    for line in lines:
        if line.tag is None and line.ungraded:
            say(
                f"{line.env_id}: {line.ungraded} of {line.episodes} episodes scored 0 because the "
                "grader failed on what the policy left"
            )
        if line.tag is None and line.undeclared:
            say(_undeclared(line))
    shown = [e for line in lines for e in (line.success, line.reward, *line.pass_at.values()) if e]
    methods = sorted({e.interval.method for e in shown if e.interval is not None})
    if methods:
        say(f"brackets: 95% intervals over tasks ({', '.join(methods)})")
    say("episodes that faulted are not counted")


def _undeclared(line: EvalRow) -> str:
    share = "" if line.success is None else f" in {line.undeclared} of {line.episodes} episodes"
    return (
        f"{line.env_id}: success is undefined{share}, because {UNDECLARED}; the mean reward is the "
        f"result. To declare one, {HOW_TO_DECLARE}; --reward-threshold counts with another"
    )


def _row(line: EvalRow, ks: Sequence[int], *, has_images: bool, has_cost: bool) -> list[str]:
    name = line.env_id if line.tag is None else f"  {line.tag} {line.value}"
    row = [name, str(line.tasks), str(line.episodes), _percent(line.success)]
    row.append(with_interval(line.reward))
    row += [_percent(line.pass_at.get(k)) for k in ks]
    row += [_percent(line.pass_all.get(k)) for k in ks]
    row += [_mean(line.turns, 1), _mean(line.prompt_tokens, 0), _mean(line.reply_tokens, 0)]
    row += [_mean(line.images, 1)] if has_images else []
    row.append(_mean(line.seconds, 2))
    if has_cost:
        row.append("-" if line.cost is None else _dollars(line.cost))
    left = f" +{line.aborted} unfinished" if line.aborted else ""
    return [*row, f"{line.faulted}{left}"]


def _percent(estimate: Estimate | None) -> str:
    return with_interval(estimate, factor=100, digits=1, unit="%")


def _mean(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _dollars(value: float) -> str:
    return f"${value:.2f}" if value >= 1 else f"${value:.4f}"
