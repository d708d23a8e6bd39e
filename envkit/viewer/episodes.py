"""One episode as JSON data for its page."""

from dataclasses import dataclass, field
from typing import Any, Final

from envkit.images import Image
from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.checks import Problem, check_trajectory
from envkit.trajectory.image_folder import ImageFolder
from envkit.trajectory.plain import Keep, to_plain
from envkit.trajectory.storage import StoredLine
from envkit.trajectory.success import deciding_threshold, own_return, success_of
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.conversation import conversation
from envkit.viewer.images import image_size
from envkit.viewer.rows import EpisodeRow, episode_row, title_of
from envkit.viewer.sequences import sequences
from envkit.viewer.wording import clipped, number

_TITLE: Final = 600
"""Characters of a title. A longer first message is in the conversation in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEpisode:
    """One trajectory, ready to show."""

    row: EpisodeRow
    data: dict[str, Any]
    """JSON data; see `episode`."""
    images: tuple[Image, ...]
    """Images in order of first use."""
    token_ids: frozenset[int] = field(repr=False)
    """See `used_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the rules and the certificate say about a record."""

    problems: tuple[Problem, ...]
    seal: str
    """Of the certificate of what the record holds."""
    status: str
    """How that compares with the recorded certificate, for people."""
    kind: str
    """"good", "bad", or empty if there is none to compare with."""

    @classmethod
    def of(cls, trajectory: Trajectory, recorded: Certificate | None) -> "Checked":
        """Check a record.

        Args:
            trajectory: The record.
            recorded: The certificate from its file; None for a trajectory in memory.
        """
        found = certify(trajectory)
        difference = None if recorded is None else recorded.difference(found)
        status, kind = ("computed now", "") if recorded is None else ("verified", "good")
        if difference is not None:
            status, kind = f"broken: {difference}", "bad"
        problems = check_trajectory(trajectory)
        return cls(problems=problems, seal=found.seal, status=status, kind=kind)

    @classmethod
    def written(cls, problems: tuple[Problem, ...], certificate: Certificate) -> "Checked":
        """Return what is known of a record that was just written.

        Args:
            problems: The result of `check_trajectory`.
            certificate: Computed for the record and written with it.
        """
        status = "computed when it was written"
        return cls(problems=problems, seal=certificate.seal, status=status, kind="good")

    def row(self, trajectory: Trajectory, number: int) -> EpisodeRow:
        """Return the row of the record.

        Args:
            trajectory: The record.
            number: Its line in the file, from 1.
        """
        is_broken = bool(self.problems) or self.kind == "bad"
        return episode_row(trajectory, number=number, problems=self.problems, is_broken=is_broken)


def episode(
    trajectory: Trajectory,
    recorded: Certificate | None,
    *,
    number: int,
    folder: ImageFolder | None = None,
) -> ShownEpisode:
    """Check and prepare one trajectory for its page; see `shown_episode`.

    Args:
        trajectory: The trajectory to show.
        recorded: The certificate from its file; None for a trajectory in memory.
        number: Its line in the file, from 1.
        folder: Folder of its image files; None for images in memory.

    Raises:
        StorageError: JSON cannot represent a free-form part.
    """
    checked = Checked.of(trajectory, recorded)
    return shown_episode(trajectory, checked, checked.row(trajectory, number), folder=folder)


def shown_episode(
    trajectory: Trajectory, checked: Checked, row: EpisodeRow, *, folder: ImageFolder | None
) -> ShownEpisode:
    """Prepare one trajectory for its page.

    The conversation is a tree: see `envkit.viewer.sequences`.

    Args:
        trajectory: The trajectory to show.
        checked: What its check found.
        row: Its row.
        folder: Folder of its image files; None for images in memory.

    Raises:
        StorageError: JSON cannot represent a free-form part.
    """
    images: dict[Image, None] = {}

    def keep(image: Image) -> None:
        images.setdefault(image)

    data = {
        "number": row.number,
        "title": clipped(title_of(trajectory), _TITLE),
        **_head(trajectory, keep),
        "certificate": {"seal": checked.seal, "status": checked.status, "kind": checked.kind},
        "problems": [{"rule": one.rule.value, "message": one.message} for one in checked.problems],
        "sequences": sequences(trajectory, conversation(trajectory, keep), keep),
        "pictures": [one.sha256 for one in images],
    }
    data["sizes"] = {one.sha256: size for one in images if (size := image_size(one, folder))}
    return ShownEpisode(
        row=row,
        data=data,
        images=tuple(images),
        token_ids=used_ids(trajectory),
    )


def used_ids(trajectory: Trajectory) -> frozenset[int]:
    """Return every train id of an episode."""
    found: set[int] = set()
    for segment in trajectory.segments:
        found.update(segment.array("train_ids").tolist())
    return frozenset(found)


def checked_row(stored: StoredLine, trajectory: Trajectory) -> EpisodeRow:
    """Return the row of a readable line; its rules and its certificate are checked.

    Args:
        stored: The line.
        trajectory: The line's.
    """
    problems = check_trajectory(trajectory)
    recorded = stored.certificate
    is_broken = bool(problems) or (
        recorded is not None and recorded.difference(certify(trajectory)) is not None
    )
    return episode_row(trajectory, number=stored.line, problems=problems, is_broken=is_broken)


def success_words(trajectory: Trajectory) -> str:
    """Return whether an episode solved its task and what decided it; empty without a reward."""
    solved, threshold = success_of(trajectory), deciding_threshold(trajectory)
    if trajectory.reward is None:
        return ""
    if solved is None:
        return "success is not defined: no reward threshold is declared"
    result = "solved" if solved else "not solved"
    if threshold is None:
        return f"{result}: is_success = {str(solved).lower()}"
    own, sign = own_return(trajectory), "≥" if solved else "<"
    return f"{result}: return {number(own)} {sign} threshold {number(threshold)}"


def _head(trajectory: Trajectory, keep: Keep) -> dict[str, Any]:
    fault = trajectory.fault
    return {
        "id": trajectory.episode_id,
        "env": trajectory.env_id,
        "engine": trajectory.engine,
        "seed": None if trajectory.seed is None else str(trajectory.seed),
        "group": trajectory.group_id,
        "reward": to_plain(trajectory.reward, "reward", keep),
        "success": success_words(trajectory),
        "stop": trajectory.stop_reason.value,
        "fault": None
        if fault is None
        else {"where": fault.where, "kind": fault.kind, "message": fault.message},
        "seconds": to_plain(trajectory.duration_seconds, "duration_seconds", keep),
        "restarts": trajectory.env_restarts,
        "task": to_plain(trajectory.task, "task", keep),
        "reset_info": to_plain(trajectory.reset_info, "reset_info", keep),
        "metadata": to_plain(trajectory.metadata, "metadata", keep),
        "has_ledger": trajectory.has_ledger,
    }
