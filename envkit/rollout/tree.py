"""Tree rollouts: one episode, continued several times from chosen turns.

The trunk is played first. Before a chosen turn, the environment is restored (or the recorded
replies are replayed) and the model samples again. Every leaf is a separate episode with its own
reward and stop reason. It shares the tokens before the fork with its parent, which alone trains
them. `envkit.advantages.tree_advantages` turns the leaves' rewards into credit for each turn.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import gymnasium
import numpy as np

from envkit.errors import ConfigurationError
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.multi_agent import has_role
from envkit.rollout.player import AnyPlayer
from envkit.rollout.setup import EpisodeSpec
from envkit.seeds import derive_seed
from envkit.trajectory.fork import fork_before
from envkit.trajectory.segment import SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory


class Branching(Protocol):
    """Chooses where an episode is forked."""

    @property
    def width(self) -> int:
        """Continuations of a fork, the one that is there already included."""
        ...

    def turns_of(self, trunk: Trajectory) -> Sequence[int]:
        """Return before which turns of the trunk, counted from 0, in ascending order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTurns:
    """Fork before fixed turns: `width ** len(turns)` leaves if all episodes are long enough."""

    turns: tuple[int, ...]
    width: int = 2

    def __post_init__(self) -> None:
        """Refuse turns or a width that fork nothing.

        Raises:
            ConfigurationError: No turn, a negative one, or a width below 2.
        """
        if not self.turns or min(self.turns) < 0:
            raise ConfigurationError(
                f"AtTurns takes turns counted from 0, at least one, got {self.turns}"
            )
        _check_width(self.width)

    def turns_of(self, trunk: Trajectory) -> Sequence[int]:
        """Return the fixed turns."""
        return sorted(set(self.turns))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByEntropy:
    """Fork before the turns where the model was least sure: the highest mean of -log p.

    That mean over the sampled tokens estimates the entropy of a reply from one sample.
    """

    forks: int = 2
    """How many turns."""
    width: int = 2

    def __post_init__(self) -> None:
        """Refuse numbers that fork nothing.

        Raises:
            ConfigurationError: No fork, or a width below 2.
        """
        if self.forks < 1:
            raise ConfigurationError(f"ByEntropy takes at least one fork, got {self.forks}")
        _check_width(self.width)

    def turns_of(self, trunk: Trajectory) -> Sequence[int]:
        """Return the turns with the highest mean surprisal in nats per token."""
        logprobs: dict[int, list[float]] = {}
        for segment in trunk.segments:
            if segment.kind is SegmentKind.MODEL:
                logprobs.setdefault(segment.turn, []).extend(segment.logprobs)
        surprisal = {turn: -float(np.mean(one)) for turn, one in logprobs.items() if one}
        answered = [turn for turn in surprisal if _is_forkable(trunk, turn)]
        return sorted(sorted(answered, key=lambda turn: (-surprisal[turn], turn))[: self.forks])


async def play_tree(
    env: AnyEnv | EnvFactory,
    player: AnyPlayer,
    *,
    branching: Branching,
    spec: EpisodeSpec | None = None,
    token_budget: int | None = None,
    interrupt: Interrupt | None = None,
) -> tuple[Trajectory, ...]:
    """Play one episode and its forks; return the leaves, the trunk first.

    A leaf that faults is a faulted trajectory, as from `Player.play`.

    Args:
        env: As for `Player.play`. With a function or a source, the forks of a turn play at once;
            a single environment plays them one after the other.
        player: Plays and resumes the episodes.
        branching: Where to fork, and how often.
        spec: Which episode; its `group_id` marks all leaves. None draws one.
        token_budget: Sampled tokens of the whole tree, after which no fork begins; None is
            unlimited.
        interrupt: Ends the tree early with valid partial trajectories.

    Raises:
        ConfigurationError: The environment has several agents, or engine and codec record no
            ledger; or as for `Player.play`.
    """
    spec, interrupt = spec or EpisodeSpec(), interrupt or Interrupt()
    spec = replace(spec, group_id=spec.group_id or spec.episode_id)
    snapshots: dict[int, bytes] = {}
    (trunk, *others) = await player.play(
        env, replace(spec, snapshots=snapshots), interrupt=interrupt
    )
    if others or has_role(trunk):
        raise ConfigurationError("play_tree plays environments with one agent")
    tree = _Tree(env, player, spec, token_budget, interrupt)
    tree.leaves[trunk.episode_id] = trunk
    tree.snapshots[trunk.episode_id] = snapshots
    try:
        for turn in branching.turns_of(trunk):
            parents = [one for one in tree.leaves.values() if _is_forkable(one, turn)]
            await tree.grow(
                [
                    tree.fork(parent, turn, number)
                    for parent in parents
                    for number in range(1, branching.width)
                ]
            )
    finally:  # until then the engine keeps what forks share
        for episode_id in tree.snapshots:
            await player.end_session(episode_id)
    return tuple(tree.leaves.values())


class _Tree:
    """The leaves played so far, and how more are added."""

    def __init__(
        self,
        env: AnyEnv | EnvFactory,
        player: AnyPlayer,
        spec: EpisodeSpec,
        token_budget: int | None,
        interrupt: Interrupt,
    ) -> None:
        self._env, self._player, self._spec = env, player, spec
        self._budget, self._interrupt = token_budget, interrupt
        self.leaves: dict[str, Trajectory] = {}
        """By episode id, in the order in which they began."""
        self.snapshots: dict[str, dict[int, bytes]] = {}
        """By episode id: the environment's state by the number of replies that it had answered."""

    def fork(self, parent: Trajectory, turn: int, number: int) -> Trajectory:
        """Return a fork that has not been played yet."""
        played = sum(one.purpose is None for one in parent.turns[:turn])
        known = self.snapshots[parent.episode_id]
        fork = fork_before(
            parent,
            turn,
            episode_id=f"{parent.episode_id}.{turn}.{number}",
            env_snapshot=known.get(played),
        )
        self.snapshots[fork.episode_id] = {n: one for n, one in known.items() if n <= played}
        return fork

    async def grow(self, forks: Sequence[Trajectory]) -> None:
        """Play the forks of a turn while the budget lasts."""
        if isinstance(self._env, gymnasium.Env):
            for fork in forks:
                if self._may_start():
                    self.leaves[fork.episode_id] = await self._resume(fork)
        elif self._may_start():
            tasks = [asyncio.ensure_future(self._resume(fork)) for fork in forks]
            try:
                played = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            self.leaves |= {leaf.episode_id: leaf for leaf in played}

    def _may_start(self) -> bool:
        if self._interrupt.reason is not None:
            return False
        spent = sum(leaf.sampled_token_count for leaf in self.leaves.values())
        return self._budget is None or spent < self._budget

    async def _resume(self, fork: Trajectory) -> Trajectory:
        place = fork.episode_id.removeprefix(self._spec.episode_id)
        (leaf,) = await self._player.resume(
            fork,
            self._env,
            member=derive_seed(self._spec.member, place),
            interrupt=self._interrupt,
            snapshots=self.snapshots[fork.episode_id],
        )
        return leaf


def _is_forkable(trajectory: Trajectory, turn: int) -> bool:
    """Return whether an episode can be forked before a turn: it is its own, and answered."""
    first = 0 if trajectory.origin is None else trajectory.origin.turns
    if not first <= turn < len(trajectory.turns):
        return False
    record = trajectory.turns[turn]
    is_recorded = any(
        one.kind is SegmentKind.MODEL and one.turn == turn for one in trajectory.segments
    )
    is_over = trajectory.stop_reason is not StopReason.ABORTED
    return is_over and is_recorded and record.purpose is None


def _check_width(width: int) -> None:
    if width < 2:
        raise ConfigurationError(f"a fork has at least 2 continuations, got width={width}")
