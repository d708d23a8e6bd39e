"""Compare a share of a run's observations with full renders during the run.

Calibration checks a template on canned conversations; this checks it on real ones. It compares
every observation of an environment's first episodes, then a small share. A difference faults the
trajectory. Several stop the run, because the codec is wrong and later rows would be too.

A comparison costs as much as the conversation is long. In conversations above `LONG_IDS` the share
therefore falls with their length, so that a late turn costs no more than one at `LONG_IDS`. What is
compared is always the whole conversation: a part of it would prove nothing about a template that
reads the rest.
"""

from collections.abc import Sequence
from typing import Final

from envkit.errors import LedgerFault
from envkit.seeds import derive_seed
from envkit.tokens.sanity import LONG_IDS, SanityMode, SanityReport
from envkit.trajectory.trajectory import Trajectory

DEFAULT_SHARE: Final = 0.01
_FIRST_EPISODES: Final = 8
"""Episodes of each environment whose observations are all compared."""
_MAX_DIFFERENT: Final = 3
"""Trajectories with a difference at which the run stops."""
_SHOWN: Final = 3_000
"""Characters of each text in the message; a record has room for both."""
_DRAWS: Final = 2**31
_STRIDE: Final = 0.618_033_988_749_895
"""The golden ratio: its multiples spread evenly over the unit interval, whatever the share is."""


class SelfCheck:
    """Draws the observations of a run to compare, judges the outcomes and counts the failures."""

    def __init__(self, mode: SanityMode = "strict", share: float = DEFAULT_SHARE) -> None:
        """Start with no episode seen.

        Args:
            mode: Which differences fail; "off" compares nothing.
            share: Share of observations to compare after the first episodes, 0 to 1; 1 compares
                every observation of the run, however long its conversation is.
        """
        self.mode: SanityMode = mode
        self.share = share
        self._first: dict[str, dict[str, bool]] = {}
        """The first episodes by environment, and whether they have compared a long conversation."""
        self._different = 0

    def draws(self, env_id: str, episode_id: str, turn: int, *, length: int) -> bool:
        """Return whether to compare the observation after a turn.

        Args:
            env_id: First episodes are counted per environment.
            episode_id: Determines the draw together with the turn, so a resumed episode draws the
                same.
            turn: Index of the reply.
            length: Ids of the conversation up to the reply, one per image.
        """
        if self.mode == "off":
            return False
        first = self._first.setdefault(env_id, {})
        if len(first) < _FIRST_EPISODES:
            first.setdefault(episode_id, False)
        is_first, is_long = episode_id in first, length > LONG_IDS
        # Also the first long one of each, or an environment with only long ones would compare few.
        if is_first and not (is_long and first[episode_id]):
            first[episode_id] |= is_long
            return True
        share = 1.0 if is_first else self.share
        if is_long and self.share < 1:
            share *= LONG_IDS / length
        start = derive_seed("sanity", episode_id) / _DRAWS
        return (start + turn * _STRIDE) % 1.0 < share

    def judge(self, report: SanityReport) -> None:
        """Accept the outcome of a comparison.

        Raises:
            LedgerFault: The mode does not accept it; the message has both texts.
        """
        if report.status.passes(self.mode):
            return
        expected, found = _around_difference(report.expected, report.found)
        raise LedgerFault(
            f"the observation's token delta is {report.status} from the full render of the "
            f"conversation (sanity={self.mode!r}); the full render has {expected}, the delta has "
            f"{found}. Run `envkit audit MODEL`, and report the template"
        )

    def note(self, played: Sequence[Trajectory]) -> str | None:
        """Count an episode; return why the run should end, or None.

        Args:
            played: The records of the episode.
        """
        failed = [one for one in played if one.is_faulted and self._is_different(one)]
        self._different += len(failed)
        if not failed or self._different < _MAX_DIFFERENT:
            return None
        fault = failed[-1].fault
        return (
            f"{self._different} trajectories have an observation whose tokens differ from the full "
            "render of the chat template, so rows of this run would not match what the model "
            f"reads; the last: {'' if fault is None else fault.message}"
        )

    def _is_different(self, trajectory: Trajectory) -> bool:
        return any(
            turn.sanity is not None and not turn.sanity.passes(self.mode)
            for turn in trajectory.own_turns
        )


def _around_difference(one: str, other: str) -> tuple[str, str]:
    """Return both texts, quoted; long ones are cut to the part around the first difference."""
    pairs = enumerate(zip(one, other, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, first - _SHOWN // 2) if max(len(one), len(other)) > _SHOWN else 0
    where = f" (from character {start})" if start else ""
    end = start + _SHOWN
    return f"{one[start:end]!r}{where}", f"{other[start:end]!r}{where}"
