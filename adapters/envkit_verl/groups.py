"""The members of a prompt's group that run in this process.

verl's V1 worker starts all samples of a prompt itself; its V0 worker starts those of its chunk.
All of them join before the first one can finish.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from envkit.advantages import Baseline
from envkit.rollout import GroupStart


class Group:
    """Samples of one prompt: their number, their start and the rewards they ended with."""

    def __init__(self) -> None:
        self.start = GroupStart()
        self._members: list[Member] = []
        self._settled = asyncio.Event()

    def join(self) -> "Member":
        """Count a member that starts now."""
        member = Member(self, len(self._members))
        self._members.append(member)
        return member

    @property
    def is_over(self) -> bool:
        """Whether every member that joined has ended."""
        return not any(member.is_running for member in self._members)

    def settle(self) -> None:
        """Wake who waits for the group, if it is over."""
        if self.is_over:
            self._settled.set()

    async def baseline(self) -> Baseline:
        """Wait for the members that run, and return what the rewarded ones are compared with."""
        await self._settled.wait()
        return Baseline.of(member.reward for member in self._members)


class Member:
    """One sample's place in its group."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.number = number
        """From 0, in the order in which they joined."""
        self.is_running = True
        self.reward: float | None = None

    def leave(self, reward: float | None) -> None:
        """Say how the sample ended, None for no reward; the first word counts."""
        if self.is_running:
            self.is_running, self.reward = False, reward
            self.group.settle()


class Groups:
    """The groups that run, by the trainer's name of their prompt."""

    def __init__(self) -> None:
        self._running: dict[str, Group] = {}

    @contextmanager
    def member(self, uid: str | None) -> Generator[Member]:
        """Join a prompt's group for as long as the block runs; None is its own group."""
        group = Group() if uid is None else self._running.setdefault(uid, Group())
        member = group.join()
        try:
            yield member
        finally:
            member.leave(None)
            if uid is not None and group.is_over and self._running.get(uid) is group:
                del self._running[uid]
