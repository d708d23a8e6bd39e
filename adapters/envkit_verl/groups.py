"""The members of a prompt's group that run in this process.

verl's V1 worker starts all samples of a prompt itself; its V0 worker starts those of its chunk.
All of them join before the first one can finish.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from envkit.rollout import GroupStart


class Group:
    """Samples of one prompt: their number, their start and the rewards they ended with."""

    def __init__(self) -> None:
        self.start = GroupStart()
        self.members = 0
        """How many have joined."""
        self._running = 0
        self._rewards: list[float] = []
        self._settled = asyncio.Event()

    def join(self) -> "Member":
        """Count a member that starts now."""
        member = Member(self, self.members)
        self.members += 1
        self._running += 1
        return member

    def leave(self, reward: float | None) -> None:
        """Count a member that ended; None without a reward."""
        self._running -= 1
        if reward is not None:
            self._rewards.append(reward)
        if not self._running:
            self._settled.set()

    @property
    def is_over(self) -> bool:
        """Whether every member that joined has ended."""
        return self._running == 0

    async def mean(self) -> float | None:
        """Wait for the members that run, and return their mean reward; None if none has one."""
        await self._settled.wait()
        return sum(self._rewards) / len(self._rewards) if self._rewards else None


class Member:
    """One sample's place in its group."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.number = number
        """From 0, in the order in which they joined."""
        self._left = False

    def leave(self, reward: float | None) -> None:
        """Say how the sample ended; the first word counts."""
        if not self._left:
            self._left = True
            self.group.leave(reward)


class Groups:
    """The groups that run, by the trainer's name of their prompt."""

    def __init__(self) -> None:
        self._running: dict[str, Group] = {}

    @contextmanager
    def member(self, uid: str | None) -> Generator[Member]:
        """Join a prompt's group for as long as the block runs; None is a group of its own."""
        group = Group() if uid is None else self._running.setdefault(uid, Group())
        member = group.join()
        try:
            yield member
        finally:
            member.leave(None)
            if uid is not None and group.is_over and self._running.get(uid) is group:
                del self._running[uid]
