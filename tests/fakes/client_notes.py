"""What a client did and how the gateway recorded it, for the page of clients."""

from typing import Any, Protocol

from fakes.gateway_run import Run

from envkit.trajectory import Trajectory


class Note(Protocol):
    """Adds a line to the notes."""

    def __call__(self, trajectory: Trajectory, *, dialect: str, does: str) -> None: ...


def line_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return the figures of an agent's episode."""
    about = trajectory.metadata["agent"]
    return {
        "replies": len(trajectory.turns),
        "sequences": len(trajectory.sequences()),
        "starts": [one.reason for one in trajectory.branches],
        "untrained": about["untrained"],
        "refused": about["requests"].get("refused", 0),
    }


def trained(run: Run, *, turns: int | None = None, sequences: int | None = None) -> Trajectory:
    """Return the episode of a client that was refused nothing and whose every reply is trained."""
    trajectory = run.trajectory()
    assert run.session.refusal is None
    assert turns in (None, len(trajectory.turns))
    assert sequences in (None, len(trajectory.sequences()))
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    return trajectory
