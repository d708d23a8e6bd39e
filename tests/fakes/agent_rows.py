"""What a trainer must have of the episodes of agents in `own_agents`."""

from collections.abc import Sequence

TITLED = [2]
"""Trained replies of each row; the title has mask 0 and makes none."""
DELEGATING = [2, 1, 1]
RELAYING = [2, 1]
"""Rows of `own_agents.relaying`, whose sub-agent replies between the two of the first row."""
PRAISED = 111.0
"""Reward of `own_agents.relaying` and `own_agents.praising` if each reply is "good"."""


def runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Return where each run of trained tokens starts and ends."""
    edges = [n for n, (a, b) in enumerate(zip([0, *mask], [*mask, 0], strict=True)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))


def check_sampled(
    tokens: Sequence[int], mask: Sequence[int], prompts: Sequence[Sequence[int]]
) -> None:
    """Check that every trained run of a row was sampled from exactly the ids before it.

    Args:
        tokens: Prompt and response.
        mask: Of the response.
        prompts: Every prompt that the server got.
    """
    start = len(tokens) - len(mask)
    for first, _ in runs(mask):
        assert list(tokens[: start + first]) in [list(one) for one in prompts]
