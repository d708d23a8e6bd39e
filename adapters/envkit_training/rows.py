"""Rules for the rows of an episode, and for episodes with several agents."""

from collections.abc import Sequence

from envkit.errors import ConfigurationError, EnvFault
from envkit.rollout.player import AnyPlayer
from envkit.rollout.sources import EnvSource
from envkit.trajectory import Row, Trajectory


def check_one_row(trajectory: Trajectory, rows: Sequence[Row], remedy: str) -> None:
    """Reject an episode of several rows where the trainer takes one.

    Args:
        trajectory: The episode.
        rows: Its rows.
        remedy: What the trainer takes, and what to set.

    Raises:
        ConfigurationError: The history was rewritten or branched.
    """
    if len(rows) > 1:
        reasons = ", ".join(dict.fromkeys(one.reason for one in trajectory.branches))
        raise ConfigurationError(
            f"the history of episode {trajectory.episode_id} was rewritten or branched "
            f"({reasons or 'no reason is recorded'}), which makes {len(rows)} rows: {remedy}"
        )


async def roles_of(player: AnyPlayer, source: EnvSource) -> tuple[str, ...]:
    """Return the roles of an environment with several agents; none if it cannot be built.

    Its episode then fails in the same way and records it.
    """
    try:
        return await player.roles_of(source)
    except EnvFault:
        return ()
