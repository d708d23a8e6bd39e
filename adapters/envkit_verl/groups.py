"""The members of a prompt's group that run in this process.

verl's V1 worker starts all samples of a prompt itself; its V0 worker starts those of its chunk. All
join before the first can finish.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from envkit.advantages import Baseline
from envkit.rollout.setup import GroupStart


class Group:
    """Samples of one prompt: their number, running count and final rewards."""

    def __init__(self) -> None:
        self.start = GroupStart()
        self._members: list[Member] = []
        self._settled = asyncio.Event()

    def join(self) -> "Member":
        """Count a starting member."""
        member = Member(self, len(self._members))
        self._members.append(member)
        return member

    @property
    def is_over(self) -> bool:
        """Whether every member that joined has ended."""
        return not any(member.is_running for member in self._members)

    def settle(self) -> None:
        """Wake waiters of the group, if it is over."""
        if self.is_over:
            self._settled.set()

    async def baseline(self) -> Baseline:
        """Wait for running members, and return the baseline of the rewarded ones."""
        await self._settled.wait()
        return Baseline.of(member.reward for member in self._members)


class Member:
    """A sample in its group."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.number = number
        """Index from 0, in join order."""
        self.is_running = True
        self.reward: float | None = None

    def leave(self, reward: float | None) -> None:
        """Record the sample's reward, None for none; only the first call counts."""
        if self.is_running:
            self.is_running, self.reward = False, reward
            self.group.settle()


class Groups:
    """Running groups, by the trainer's id of their prompt."""

    def __init__(self) -> None:
        self._running: dict[str, Group] = {}

    @contextmanager
    def member(self, uid: str | None) -> Generator[Member]:
        """Join a prompt's group while the block runs; None is its own group."""
        group = Group() if uid is None else self._running.setdefault(uid, Group())
        member = group.join()
        try:
            yield member
        finally:
            member.leave(None)
            if uid is not None and group.is_over and self._running.get(uid) is group:
                del self._running[uid]
