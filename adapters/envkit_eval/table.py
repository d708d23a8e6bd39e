"""Print an evaluation as a table."""

from collections.abc import Sequence

from envkit.cli.console import say, table
from envkit_eval import Estimate, Line


def show_lines(lines: Sequence[Line]) -> None:
    """Write the table: a row per environment, followed by its roles and tags."""
    ks = sorted({k for line in lines for k in line.pass_at if k > 1})
    has_cost = any(line.cost is not None for line in lines)
    has_images = any(line.images for line in lines)
    columns = ["", "tasks", "episodes", "success", "reward", *(f"pass@{k}" for k in ks)]
    columns += ["turns", "tokens in", "out", *(["images"] if has_images else []), "seconds"]
    columns += [*(["dollars"] if has_cost else []), "faults"]
    table(columns, [_row(line, ks, has_images=has_images, has_cost=has_cost) for line in lines])
    if has_cost:
        total = sum(line.cost or 0.0 for line in lines if line.tag is None)
        say(f"cost: {_dollars(total)} in total")
    say("brackets: 95% bootstrap intervals over tasks; episodes that faulted are not counted")


def _row(line: Line, ks: Sequence[int], *, has_images: bool, has_cost: bool) -> list[str]:
    name = line.env_id if line.tag is None else f"  {line.tag} {line.value}"
    row = [name, str(line.tasks), str(line.episodes), percent(line.success), number(line.reward)]
    row += [percent(line.pass_at.get(k)) for k in ks]
    row += [_mean(line.turns, 1), _mean(line.prompt_tokens, 0), _mean(line.reply_tokens, 0)]
    row += [_mean(line.images, 1)] if has_images else []
    row.append(_mean(line.seconds, 2))
    if has_cost:
        row.append("-" if line.cost is None else _dollars(line.cost))
    left = f" +{line.aborted} unfinished" if line.aborted else ""
    return [*row, f"{line.faulted}{left}"]


def percent(estimate: Estimate | None) -> str:
    """Return a share and its interval, such as "71.9% [60.2, 82.0]"."""
    if estimate is None:
        return "-"
    if estimate.interval is None:
        return f"{100 * estimate.mean:.1f}%"
    low, high = estimate.interval.low, estimate.interval.high
    return f"{100 * estimate.mean:.1f}% [{100 * low:.1f}, {100 * high:.1f}]"


def number(estimate: Estimate | None) -> str:
    """Return a mean and its interval, such as "0.719 [0.602, 0.820]"."""
    if estimate is None:
        return "-"
    if estimate.interval is None:
        return f"{estimate.mean:.3f}"
    return f"{estimate.mean:.3f} [{estimate.interval.low:.3f}, {estimate.interval.high:.3f}]"


def _mean(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _dollars(value: float) -> str:
    return f"${value:.2f}" if value >= 1 else f"${value:.4f}"
